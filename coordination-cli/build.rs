//! Links the command at a fixed address, and with what has to be settled before Rust's runtime begins (`src/begin.c`):
//! docs/decisions/command.md.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/begin.c");
    let target = |part: &str| std::env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    // Others do not hand the arguments to what runs before `main`.
    if target("OS") == "linux" && target("ENV") == "gnu" {
        println!("cargo:rustc-link-arg-bins=-no-pie");
        // As an object: of a library a linker takes only what is called for.
        for object in cc::Build::new().file("src/begin.c").compile_intermediates() {
            println!("cargo:rustc-link-arg-bins={}", object.display());
        }
    }
}
