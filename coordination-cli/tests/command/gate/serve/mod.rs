//! `coordination serve`: real processes, real HTTP, on a directory and on a server.

mod certificates;
mod chaos;
mod each;
mod examples;
mod known;
mod locks;
mod others;
mod page;
mod plain;
mod ranges;
mod recipes;
mod rights;
mod rolling;
mod safety;
mod stopping;
mod tls;
mod unix;
mod zaqar;
