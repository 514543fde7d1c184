//! The two tables of what is tested: [stores](crate::store_table), and stores in [settings](crate::setting_table) that
//! are harder for them.
//!
//! Every list of stores elsewhere is either generated from these tables, or compared with them by the tests of this
//! file and by `gate/listed.rs` of the test program, which knows the names of all tests. So a test fails if a store is
//! missing somewhere.

/// The table of stores, in the order of the README's tables. `store_table! { [MACRO] [ARGUMENTS] }` passes the rows to
/// a macro, by calling `MACRO! { ARGUMENTS ROWS }`.
///
/// A row has these columns:
///
/// * the name: the store's URL scheme, the library's feature, and the modules of its tests;
/// * the variant of [`Backend`](crate::checks::Backend), which is also the name of the struct in
///   [`harness`](crate::harness) that starts the store's servers;
/// * how many of the [conformance](crate::conformance) checks the gate runs on it: `all`, or `most`, in which case
///   those that are listed as `two` run in the soak;
/// * the kind of setup: `in_process` needs only a name; `files` needs a directory; `server` needs servers, which
///   implement [`Server`](crate::harness::Server);
/// * the script that runs its checks: `gate`, or `soak` if not every machine can have the server;
/// * the feature with which it is built in, unless every build has it.
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

/// The table of settings in which all checks of a store are to pass: all of them in the soak, and a check of the lock
/// in the gate. It passes its rows to a macro as [`store_table!`](crate::store_table) does.
///
/// A row has the name of its module of tests, the constant in [`settings`](crate::checks::settings), the store, the
/// setting by the name that the store's harness gives it, the store's kind, and `gate`, or `soak` if the gate has no
/// check in the setting, because not every machine can have what it needs.
#[macro_export]
macro_rules! setting_table {
    ([$($to:tt)+] [$($arguments:tt)*]) => {
        $($to)+! { $($arguments)*
            /// Files, in a process with 64 file descriptors.
            file_few_descriptors FILE_FEW_DESCRIPTORS File "few-descriptors" files gate;
            /// Files, while 24 threads connect and stop all the time.
            file_connecting FILE_CONNECTING File "connecting" files gate;
            /// Files, without what only Linux has: waiters poll, and no holes are punched.
            file_plain FILE_PLAIN File "plain" files gate;
            /// etcd with users whose tokens expire.
            etcd_tokens ETCD_TOKENS Etcd "tokens" server gate if feature = "etcd";
            /// etcd with users whose rights change each second, which invalidates their tokens.
            etcd_jwt ETCD_JWT Etcd "jwt" server gate if feature = "etcd";
            /// etcd behind a `grpc-proxy`.
            etcd_proxy ETCD_PROXY Etcd "proxy" server gate if feature = "etcd";
            /// Redis with three Sentinels, and a master that refuses writes while its replica is not connected.
            redis_sentinels REDIS_SENTINELS Redis "sentinels" server gate if feature = "redis";
            /// A Redis cluster of three masters, between which slots move each second.
            redis_cluster REDIS_CLUSTER Redis "cluster" server gate if feature = "redis";
            /// etcd by a host name whose first address does not answer.
            etcd_named ETCD_NAMED Etcd "named" server gate if feature = "etcd";
            /// ZooKeeper by a host name whose first address does not answer.
            zookeeper_named ZOOKEEPER_NAMED Zookeeper "named" server gate if feature = "zookeeper";
            /// Consul by a host name whose first address does not answer.
            consul_named CONSUL_NAMED Consul "named" server gate if feature = "consul";
            /// Redis by a host name whose first address does not answer.
            redis_named REDIS_NAMED Redis "named" server gate if feature = "redis";
            /// PostgreSQL behind a pgbouncer that gives each transaction another connection to the server.
            postgres_pooled POSTGRES_POOLED Postgres "pooled" server soak if feature = "postgres";
            /// PostgreSQL as a role that has the rights that its page asks for, and no others.
            postgres_rights POSTGRES_RIGHTS Postgres "rights" server soak if feature = "postgres";
            /// MariaDB as a user who has the rights that its page asks for, and no others.
            mysql_rights MYSQL_RIGHTS Mysql "rights" server soak if feature = "mysql";
        }
    };
}

/// Passes each store that is built in, and whose checks are in the gate, to a macro: `stores! { [MACRO] ARGS }` calls
/// `MACRO! { @store ARGS NAME BACKEND SHARE KIND }`, with columns of the [table](crate::store_table).
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

/// Like [`stores!`](macro@crate::stores), for each store whose server is optional. Its checks are parts of their own in the
/// soak, and run there in full.
#[macro_export]
macro_rules! optional_stores {
    ($to:tt $args:tt) => {
        $crate::store_table! { [$crate::stores] [@rows soak $to $args] }
    };
}

/// Like [`stores!`](macro@crate::stores), for each setting whose store is built in; `SHARE` is always `all`. With `gate`
/// before the macro, only for those in which the gate has a check.
#[macro_export]
macro_rules! settings {
    (@rows $script:ident $to:tt $args:tt $($(#[$doc:meta])+
        $name:ident $setting:ident $backend:ident $word:literal $kind:ident $in:ident $(if $built:meta)?;)+) => {
        $(
            $(#[cfg($built)])?
            $crate::settings! { @row $script $in $to [$args $name $setting all $kind] }
        )+
    };
    (@row gate soak $to:tt $row:tt) => {};
    (@row $script:ident $in:ident [$($to:tt)+] [$($row:tt)+]) => { $($to)+! { @store $($row)+ } };
    (gate $to:tt $args:tt) => { $crate::setting_table! { [$crate::settings] [@rows gate $to $args] } };
    ($to:tt $args:tt) => { $crate::setting_table! { [$crate::settings] [@rows soak $to $args] } };
}

/// Makes tests on several stores from functions that take a [`Backend`](crate::checks::Backend).
///
/// `each_store!(servers a b)` makes tests of the functions `a` and `b`. The first word is the group of stores: `servers`
/// is each store with a server, `processes` is each store that processes can share. Each store gets a module of its
/// own. Tests that need most of the machine are made with `alone` before the group: while such a test runs, no other
/// test runs.
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
        // Uses the functions, so that there is no warning if no such store is built in.
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

    /// The contents of a file of the repository.
    fn file(path: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in a workspace");
        fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn names(of: impl Fn(&Backend) -> bool) -> Vec<&'static str> {
        let chosen = Backend::ALL.iter().copied().filter(of);
        chosen.map(Backend::name).collect()
    }

    /// The words in a variable of a script: a list in quotation marks.
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

    /// Checks only that the parts exist. `gate/listed.rs` of the test program checks that each part runs the right
    /// tests.
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
        expected("faults", &|store| !store.is_in_process());
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
