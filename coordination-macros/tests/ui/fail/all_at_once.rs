#![allow(unused)]

use coordination::synchronized;

#[synchronized("<a>-<b>", "<", timeout = "x", colour = 1, on_lost = "?")]
async fn everything(id: u32) {}

fn main() {}
