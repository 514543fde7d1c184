//! What `#[synchronized]` accepts and refuses when it is compiled, and in which words.
//!
//! Each program in `tests/ui` is given to rustc, together with the newest library that cargo has built beside this test.
//! The words are rustc's in part and change with it; `UI=overwrite` writes them anew.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

#[test]
fn accepts_and_refuses() {
    let folder = tempfile::tempdir().expect("a folder for what is compiled");
    let compiler = Compiler::new(folder.path());
    for program in programs("pass") {
        let said = compiler.compile(&program, "link");
        assert!(said.status.success(), "{}:\n{}", program.display(), text(&said.stderr));
        let ran = Command::new(folder.path().join(stem(&program))).output().expect("it was built");
        assert!(ran.status.success(), "{}:\n{}", program.display(), text(&ran.stderr));
    }
    let wrong: Vec<_> =
        programs("fail").into_iter().filter_map(|it| compiler.refuses(&it)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The programs in a folder, by their names.
fn programs(folder: &str) -> Vec<PathBuf> {
    let mut programs = files(&Path::new("tests/ui").join(folder), "", ".rs");
    programs.sort();
    assert!(!programs.is_empty());
    programs
}

fn files(folder: &Path, begin: &str, end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.retain(|path| {
        let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        name.starts_with(begin) && name.ends_with(end)
    });
    paths
}

fn stem(program: &Path) -> &OsStr {
    program.file_stem().expect("a program has a name")
}

/// Whether the library has another name in this program.
fn is_renamed(program: &Path) -> bool {
    stem(program).to_string_lossy().starts_with("renamed")
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// Compiles programs that use the library.
struct Compiler<'a> {
    into: &'a Path,
    dependencies: PathBuf,
    libraries: Vec<String>,
}

impl<'a> Compiler<'a> {
    fn new(into: &'a Path) -> Self {
        let dependencies = env::current_exe().expect("this test has a path").with_file_name("");
        let mut compiler = Self { into, dependencies, libraries: Vec::new() };
        compiler.add("async_trait", "libasync_trait-", ".so");
        compiler.add("coordination", "libcoordination-", ".rlib");
        compiler
    }

    /// Adds the newest library that is called like this.
    fn add(&mut self, name: &str, begin: &str, end: &str) {
        let built = files(&self.dependencies, begin, end).into_iter();
        let newest = built.max_by_key(|path| path.metadata().and_then(|of| of.modified()).ok());
        let path = newest.unwrap_or_else(|| panic!("no {begin}*{end} beside this test"));
        self.libraries.push(format!("{name}={}", path.display()));
    }

    fn compile(&self, program: &Path, emit: &str) -> Output {
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc.args(["--edition", "2024", "--diagnostic-width", "140", "--emit", emit]);
        rustc.arg("--out-dir").arg(self.into).arg("-L").arg(&self.dependencies).arg(program);
        for library in &self.libraries {
            // As with `locks = { package = "coordination", .. }` in a `Cargo.toml`.
            let renamed = library.strip_prefix("coordination=").filter(|_| is_renamed(program));
            rustc.arg("--extern");
            rustc.arg(renamed.map_or_else(|| library.clone(), |path| format!("locks={path}")));
        }
        rustc.output().expect("rustc is there")
    }

    /// Compares what rustc says of a program with the text beside it; what is wrong, if anything is.
    fn refuses(&self, program: &Path) -> Option<String> {
        let said = self.compile(program, "metadata");
        if said.status.success() {
            return Some(format!("{} compiles", program.display()));
        }
        let (said, beside) = (plain(&text(&said.stderr)), program.with_extension("stderr"));
        if env::var_os("UI").is_some_and(|what| what == "overwrite") {
            fs::write(&beside, &said).expect("writable");
        }
        let expected = fs::read_to_string(&beside).unwrap_or_default();
        (said != expected).then(|| format!("{}: rustc says\n{said}", program.display()))
    }
}

/// What rustc said, without its count of errors and without what depends on the machine: where other files lie, and their
/// lines, which are shown only where rustc finds them.
fn plain(said: &str) -> String {
    const ENDS: [&str; 3] =
        ["error: aborting due to", "Some errors have detailed", "For more information about"];
    let mut plain = String::new();
    let mut file = String::new();
    for line in said.lines().filter(|line| !ENDS.iter().any(|end| line.starts_with(end))) {
        let Some((number, line)) = in_margin(line) else {
            plain += &format!("{line}\n");
            continue;
        };
        if let Some(place) = line.strip_prefix("--> ") {
            file = named(place);
            plain += &format!("   --> {file}\n");
        } else if !line.starts_with('|') {
            plain += &format!("    {line}\n");
        } else if !file.starts_with('$') {
            plain += &format!("{number:>3} {line}\n");
        }
    }
    plain.trim_end().to_owned() + "\n"
}

/// The number at a line's beginning, if there is one, and what stands right of it.
fn in_margin(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let (number, rest) = line.split_at(line.find(|sign: char| !sign.is_ascii_digit())?);
    let rest = rest.trim_start();
    let is_margin = ["|", "= ", "--> "].iter().any(|sign| rest.starts_with(sign));
    is_margin.then_some((number, rest))
}

/// A place: of another file without where that lies, and without the line.
fn named(place: &str) -> String {
    let file = place.split(':').next().unwrap_or(place);
    match (file.split_once("/library/"), file.split_once("coordination/src/")) {
        (Some((_, file)), _) => format!("$RUST/{file}"),
        (None, Some((_, file))) => format!("$WORKSPACE/coordination/src/{file}"),
        (None, None) => place.to_owned(),
    }
}
