//! The two tables of what is tested: [stores](crate::store_table), and [settings](crate::setting_table) of stores.
//!
//! Everything that has to know each store follows from these tables, or is compared with them: by the tests of this file, and by
//! `gate/listed.rs` of the test program, which knows the names of all tests. A store that is left out somewhere is red.

/// The table of stores, in the order of the README's tables. It hands its rows to a macro:
/// `store_table! { [MACRO] [ARGUMENTS] }` calls `MACRO! { ARGUMENTS ROWS }`.
///
/// A row has these columns:
///
/// * the name, which is that of the store's scheme, of the library's feature, and of the modules of tests;
/// * the variant of [`Backend`](crate::checks::Backend), and of the struct in [`harness`](crate::harness) which starts the
///   store's servers;
/// * the share of the [conformance](crate::conformance) checks that the gate has: `all`, or `most`, which leaves to the soak the
///   checks that are listed as `two`;
/// * the kind, which says how it is set up: `in_process`, a name is enough; `files`, a directory; `server`, servers that
///   implement [`Server`](crate::harness::Server);
/// * the script that runs its checks: `gate`, or `soak` where not every machine can have the server;
/// * what it is built in with, where it needs more than Rust.
#[macro_export]
macro_rules! store_table {
    ([$($to:tt)+] [$($arguments:tt)*]) => {
        $($to)+! { $($arguments)*
            memory    Memory    all  in_process gate;
            file      File      most files      gate;
            etcd      Etcd      most server     gate if feature = "etcd";
            zookeeper Zookeeper most server     gate if feature = "zookeeper";
            consul    Consul    most server     gate if feature = "consul";
            redis     Redis     all  server     gate if feature = "redis";
            postgres  Postgres  most server     gate if feature = "postgres";
            mysql     Mysql     all  server     soak if feature = "mysql";
        }
    };
}

/// The table of settings in which all checks of a store are to pass, each in the soak and the lock in the gate. It hands its
/// rows to a macro like [`store_table!`](crate::store_table).
///
/// A row has the name of its module of tests, the constant in [`settings`](crate::checks::settings), the store, the setting in
/// the store's own word, and the store's kind.
#[macro_export]
macro_rules! setting_table {
    ([$($to:tt)+] [$($arguments:tt)*]) => {
        $($to)+! { $($arguments)*
            /// Files, and 64 descriptors for the process.
            file_few_descriptors FILE_FEW_DESCRIPTORS File "few-descriptors" files;
            /// Files, while 24 threads connect and stop all the time.
            file_connecting FILE_CONNECTING File "connecting" files;
            /// etcd with users whose tokens end soon.
            etcd_tokens ETCD_TOKENS Etcd "tokens" server if feature = "etcd";
            /// etcd with users whose rights change all the time.
            etcd_jwt ETCD_JWT Etcd "jwt" server if feature = "etcd";
            /// etcd behind a `grpc-proxy`.
            etcd_proxy ETCD_PROXY Etcd "proxy" server if feature = "etcd";
            /// Redis under three Sentinels, with a master that does nothing without its replica.
            redis_sentinels REDIS_SENTINELS Redis "sentinels" server if feature = "redis";
            /// Redis in a cluster of three masters, between which slots move each second.
            redis_cluster REDIS_CLUSTER Redis "cluster" server if feature = "redis";
            /// etcd under a name whose first address is silent.
            etcd_named ETCD_NAMED Etcd "named" server if feature = "etcd";
            /// ZooKeeper under a name whose first address is silent.
            zookeeper_named ZOOKEEPER_NAMED Zookeeper "named" server if feature = "zookeeper";
            /// Consul under a name whose first address is silent.
            consul_named CONSUL_NAMED Consul "named" server if feature = "consul";
            /// Redis under a name whose first address is silent.
            redis_named REDIS_NAMED Redis "named" server if feature = "redis";
        }
    };
}

/// Hands each store that is built in, and whose checks are in the gate, to a macro: `stores! { [MACRO] ARGS }` calls
/// `MACRO! { @store ARGS NAME BACKEND SHARE KIND }`. The words are those of the [table](crate::store_table).
#[macro_export]
macro_rules! stores {
    (@rows $script:ident $to:tt $args:tt
        $($name:ident $backend:ident $share:ident $kind:ident $in:ident $(if $built:meta)?;)+) => {
        $(
            $(#[cfg($built)])?
            $crate::stores! { @row $script $in $to [$args $name $backend $share $kind] }
        )+
    };
    (@row gate gate [$($to:tt)+] [$($row:tt)+]) => { $($to)+! { @store $($row)+ } };
    (@row soak soak [$($to:tt)+] [$($row:tt)+]) => { $($to)+! { @store $($row)+ } };
    (@row $script:ident $in:ident $to:tt $row:tt) => {};
    ($to:tt $args:tt) => { $crate::store_table! { [$crate::stores] [@rows gate $to $args] } };
}

/// The same for each store whose server is optional, and for whose checks the soak has parts of their own; each has
/// everything.
#[macro_export]
macro_rules! optional_stores {
    ($to:tt $args:tt) => {
        $crate::store_table! { [$crate::stores] [@rows soak $to $args] }
    };
}

/// The same for each setting of a store that is built in; each has everything.
#[macro_export]
macro_rules! settings {
    (@rows $to:tt $args:tt $($(#[$doc:meta])+
        $name:ident $setting:ident $backend:ident $word:literal $kind:ident $(if $built:meta)?;)+) => {
        $(
            $(#[cfg($built)])?
            $crate::settings! { @row $to [$args $name $setting all $kind] }
        )+
    };
    (@row [$($to:tt)+] [$($row:tt)+]) => { $($to)+! { @store $($row)+ } };
    ($to:tt $args:tt) => { $crate::setting_table! { [$crate::settings] [@rows $to $args] } };
}

/// Makes tests on several stores of functions that take a [`Backend`](crate::checks::Backend): `each_store!(servers a b)`, or
/// `processes` for all that processes can share. Each store has a module of its own. With `alone` before the group
/// nothing else runs beside such a test, which leaves others no time.
#[macro_export]
macro_rules! each_store {
    (@store [$rerun:ident $group:ident $($test:ident)+] $module:ident $backend:ident $share:ident in_process) => {};
    (@store [$rerun:ident servers $($test:ident)+] $module:ident $backend:ident $share:ident files) => {};
    (@store [$rerun:ident $group:ident $($test:ident)+] $module:ident $backend:ident $share:ident $kind:ident) => {
        mod $module {
            $(
                #[test]
                fn $test() {
                    $crate::harness::$rerun(|| super::$test($crate::checks::Backend::$backend));
                }
            )+
        }
    };
    (alone $group:ident $($test:ident)+) => {
        $crate::each_store! { @rerun rerun_alone $group $($test)+ }
    };
    (@rerun $rerun:ident $group:ident $($test:ident)+) => {
        // Used, also where no such store is built in.
        const _: &[fn($crate::checks::Backend)] = &[$($test),+];
        $crate::stores! { [$crate::each_store] [$rerun $group $($test)+] }
    };
    ($group:ident $($test:ident)+) => {
        $crate::each_store! { @rerun rerun_if_starved $group $($test)+ }
    };
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use crate::chaos;
    use crate::checks::{Backend, Kind};

    /// A file of the repository.
    fn file(path: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in a workspace");
        fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn names(of: impl Fn(&Backend) -> bool) -> Vec<&'static str> {
        let chosen = Backend::ALL.iter().copied().filter(of);
        chosen.map(Backend::name).collect()
    }

    /// The words of a list that a script keeps in a variable.
    fn words_of<'a>(script: &'a str, variable: &str) -> Vec<&'a str> {
        let begin = format!("{variable}=\"");
        let list = script.lines().find_map(|line| line.strip_prefix(&begin)?.strip_suffix('"'));
        list.unwrap_or_else(|| panic!("no {variable}")).split_whitespace().collect()
    }

    #[test]
    fn the_library_has_these_stores() {
        let registry = file("coordination/src/backend/registry.rs");
        let (_, list) = registry.split_once("\nstores! {\n").expect("the library's list of stores");
        let (list, _) = list.split_once("\n}").expect("the end of the list");
        let features: Vec<_> = list.lines().filter_map(|line| line.split('"').nth(1)).collect();
        assert_eq!(features, names(|_| true));
    }

    #[test]
    fn every_store_is_built_and_linted() {
        let features = file("tests/features");
        assert_eq!(words_of(&features, "local_stores"), names(|store| store.needs_only_rust()));
        assert_eq!(words_of(&features, "stores"), names(|store| !store.needs_only_rust()));
        for crate_file in ["tests/Cargo.toml", "examples/Cargo.toml"] {
            let text = file(crate_file);
            for name in names(|store| !store.needs_only_rust()) {
                let feature = format!("\n{name} = [\"coordination/{name}\"");
                assert!(text.contains(&feature), "{crate_file} has no feature {name}");
            }
        }
        let command = file("coordination-cli/Cargo.toml");
        for name in names(|store| !store.is_in_process()) {
            assert!(command.contains(&format!("\"{name}\"")), "the command has no {name}");
        }
    }

    /// Which tests a part runs is for `gate/listed.rs` of the test program.
    #[test]
    fn every_store_has_its_parts_of_the_soak() {
        let soak = file("tests/soak");
        let expected = |kind: &str, of: &dyn Fn(&Backend) -> bool| {
            for name in names(of) {
                let part = format!("{kind}-{name}");
                let is_it = |line: &str| line.split_whitespace().next() == Some(&part);
                assert!(soak.lines().any(is_it), "tests/soak has no part {part}");
            }
        };
        // The gate has all rows of `file://`.
        expected("faults", &|store| store.has_servers());
        expected("chaos", &|store| !store.is_in_process());
        expected("storm", &|store| !store.has_servers());
    }

    #[test]
    fn every_store_without_a_server_is_stormed() {
        let options = file("tests/crates/storm/src/options.rs");
        for name in names(|store| !store.has_servers()) {
            assert!(options.contains(&format!("=> \"{name}\"")), "no storm of {name}");
        }
    }

    #[test]
    fn chaos_has_every_store_that_processes_share() {
        for store in Backend::ALL.iter().filter(|store| store.is_built_in()) {
            let has = chaos::Store::ALL.iter().any(|chaos| chaos.backend == *store);
            assert_eq!(has, store.kind() != Kind::InProcess, "{store:?}");
        }
    }

    #[test]
    fn every_store_has_its_pages_and_columns() {
        let heading = |stores: &[&str]| format!(" | {} |\n", stores.join(" | "));
        let (all, shared) = (names(|_| true), names(|store| !store.is_in_process()));
        let with_gate = names(|store| store.is_in_gate());
        assert!(file("README.md").contains(&format!("| recipe{}", heading(&with_gate))));
        assert!(file("docs/guarantees.md").contains(&format!("\n|{}", heading(&all))));
        assert!(file("docs/faults.md").contains(&format!("\n| | fault{}", heading(&shared))));
        for name in all {
            let page = format!("docs/backends/{name}.md");
            assert!(file("README.md").contains(&page), "the README leads to no {page}");
            assert!(!file(&page).is_empty());
        }
    }
}
