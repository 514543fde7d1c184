//! The rows that read the same on several stores, as tests of one: `fault_rows!(etcd)`.

use coordination::Result;

use crate::checks::{Backend, Programs, Stage};

/// Lists the rows that read the same on several stores, and makes them tests of one: `fault_rows!(etcd)`, at the
/// root of a test binary.
///
/// A row takes place at a site of its own, on a stage of the checks, or apart in a network namespace. It is for
/// `processes`, for `servers`, or for three servers that keep a `cluster`; the tests on three are in a module.
#[macro_export]
macro_rules! fault_rows {
    (@list $to:tt) => {
        $crate::fault_rows! { @each $to
            site crash f01_holder_killed [processes cluster];
            site crash f02_waiters_killed [processes];
            site paused f03_holder_paused_long [servers cluster];
            site paused f04_paused_between_heartbeat_and_reply [servers];
            site paused f05_holder_paused_briefly [servers cluster];
            site paused f06_executor_blocked [servers];
            site server f07_server_restarted [servers];
            site server f07_member_restarted [cluster];
            site server f08_server_down [servers cluster];
            site server f09_server_paused_long [servers];
            site server f09_member_paused_long [cluster];
            site late f09_given_up_calls_come_late [servers cluster];
            site server f10_server_paused_briefly [servers];
            site network f11_requests_swallowed [servers cluster];
            apart silent f11_requests_lost_silently [servers];
            apart silent f11_everything_lost_silently [servers];
            site network f12_replies_swallowed [servers cluster];
            apart silent f12_replies_lost_silently [servers];
            site network f13_connections_reset [servers cluster];
            site network f13_waiters_connection_reset [servers];
            stage cuts f14_every_cut_of_a_lock [servers];
            stage cuts f14_every_cut_of_a_waiter [servers];
            stage cuts f14_every_cut_of_a_downgrade [servers];
            stage cuts f14_every_cut_of_groups_and_elections [servers];
            stage cuts f14_every_cut_of_slots_and_values [servers];
            stage cuts f14_every_cut_of_connect_and_stop [servers];
            site operator f22_session_ended [servers cluster];
            site operator f23_entry_deleted [servers cluster];
            site guards f39_children_spawned_while_held [processes];
            stage dropped f41_locks_at_every_message [servers];
            stage dropped f41_recipes_at_every_message [servers];
            stage dropped f41_connect_and_stop_at_every_message [servers];
            stage dropped f42_releases_at_every_message [servers];
            site guards f42_release_after_loss [processes];
            site crash f43_exit_with_a_guard [processes];
            site guards f43_runtime_dropped [processes];
            site guards f43_tied_runtime_dropped [processes];
            site identity f46_odd_names [processes];
            site connecting f48_not_there [servers];
            site connecting f48_not_all_there [servers];
            site connecting f48_silent [servers];
            site connecting f48_no_quorum [cluster];
            site connecting f48_down_after_connect [servers];
            site identity f51_member_exists [processes];
        }
    };
    (@each table $($how:ident $module:ident $row:ident [$($group:ident)+];)+) => {
        &[$((stringify!($row), &[$(stringify!($group)),+])),+]
    };
    (@each [$kind:ident $backend:ident]
        $($how:ident $module:ident $row:ident [$($group:ident)+];)+) => {
        $($($crate::fault_rows! { @if $kind $group [$how $backend $module $row] })+)+
    };
    // Which group is for which kind of store.
    (@if file processes $test:tt) => { $crate::fault_rows! { @test 1 $test } };
    (@if server processes $test:tt) => { $crate::fault_rows! { @test 1 $test } };
    (@if server servers $test:tt) => { $crate::fault_rows! { @test 1 $test } };
    (@if three cluster $test:tt) => { $crate::fault_rows! { @test 3 $test } };
    (@if $kind:ident $group:ident $test:tt) => {};
    (@test $nodes:tt [site $backend:ident $module:ident $row:ident]) => {
        #[test]
        fn $row() {
            let backend = $crate::checks::Backend::$backend;
            let worker = env!("CARGO_BIN_EXE_worker");
            $crate::faults::$module::$row(&$crate::faults::Site::start(backend, $nodes, worker));
        }
    };
    (@test $nodes:tt [stage $backend:ident $module:ident $row:ident]) => {
        #[test]
        fn $row() -> ::coordination::Result<()> {
            let programs = $crate::checks::Programs {
                worker: env!("CARGO_BIN_EXE_worker"),
                forker: env!("CARGO_BIN_EXE_forker"),
            };
            let backend = $crate::checks::Backend::$backend;
            $crate::faults::on_stage(backend, programs, $crate::faults::$module::$row)
        }
    };
    (@test $nodes:tt [apart $backend:ident $module:ident $row:ident]) => {
        #[test]
        fn $row() {
            $crate::faults::$module::$row($crate::faults::Apart {
                backend: $crate::checks::Backend::$backend,
                worker: env!("CARGO_BIN_EXE_worker"),
                test: stringify!($row),
            });
        }
    };
    (@servers $backend:ident) => {
        $crate::fault_rows! { @list [server $backend] }
    };
    (@servers_and_three $backend:ident) => {
        $crate::fault_rows! { @servers $backend }

        mod of_three {
            $crate::fault_rows! { @list [three $backend] }
        }
    };
    // The stores.
    (file) => { $crate::fault_rows! { @list [file File] } };
    (etcd) => { $crate::fault_rows! { @servers_and_three Etcd } };
    (redis) => { $crate::fault_rows! { @servers Redis } };
    (consul) => { $crate::fault_rows! { @servers_and_three Consul } };
    (zookeeper) => { $crate::fault_rows! { @servers_and_three Zookeeper } };
}

/// Each row: its name, and which stores it is for.
pub(super) const SHARED: &[(&str, &[&str])] = crate::fault_rows!(@list table);

/// Does a row on a stage of the checks.
///
/// # Errors
///
/// Those of the row.
pub fn on_stage(
    backend: Backend,
    programs: Programs,
    row: impl AsyncFnOnce(&Stage) -> Result<()>,
) -> Result<()> {
    let stage = Stage::shared(backend, programs);
    tokio::runtime::Runtime::new().expect("a runtime").block_on(row(&stage))
}
