//! Names the groups of systems that `env/` and `backend/file/` tell apart.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |what: &str| env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    let (os, vendor) = (target("OS"), target("VENDOR"));
    let is_linux = ["linux", "android"].contains(&&*os);
    // The system has Linux' kernel, and its system calls.
    name("linux_kernel", is_linux);
    // The system has the store on files.
    name("file_store", is_linux || os == "freebsd" || vendor == "apple");
}

fn name(group: &str, is_in_it: bool) {
    println!("cargo::rustc-check-cfg=cfg({group})");
    if is_in_it {
        println!("cargo::rustc-cfg={group}");
    }
}
