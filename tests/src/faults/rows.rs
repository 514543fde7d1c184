//! The rows whose test is the same on several stores, as tests of one store.

use std::time::Duration;

use coordination::Result;

use crate::checks::{Backend, Programs, TestStore};
use crate::harness::on_threads;

/// Lists the rows whose test is the same on several stores, and makes tests of them for one store of the kind `files`
/// or `server`: `gate` makes those of the gate, `soak` those that are left for the soak, and `all` both. For example
/// `fault_rows!(gate server Etcd)`. `fault_rows!(all three Etcd)` makes those that need three servers.
///
/// The first column says where a row takes place: `site`, at a [`Site`](crate::faults::Site) of its own; `store`, on
/// a [`TestStore`](crate::checks::TestStore); `apart`, in a network namespace. The groups say whether the row is for
/// `processes` (all stores that processes share), for `servers`, or for a `cluster` of three servers. The last column
/// says which script runs the row on file and etcd: only these two stores have rows in the gate, where they stand for
/// the others.
#[macro_export]
macro_rules! fault_rows {
    (@list $to:tt) => {
        $crate::fault_rows! { @each $to
            site crash f01_holder_killed [processes cluster] gate;
            site crash f02_waiters_killed [processes] gate;
            site paused f03_holder_paused_long [servers cluster] gate;
            site paused f04_paused_between_heartbeat_and_reply [servers] gate;
            site paused f05_holder_paused_briefly [servers cluster] gate;
            site paused f06_executor_blocked [servers] gate;
            site server f07_server_restarted [servers] gate;
            site server f07_member_restarted [cluster] gate;
            site server f08_server_down [servers cluster] gate;
            site server f09_server_paused_long [servers] gate;
            site server f09_member_paused_long [cluster] gate;
            site late f09_given_up_calls_come_late [servers cluster] gate;
            site server f10_server_paused_briefly [servers] gate;
            site network f11_requests_swallowed [servers cluster] gate;
            apart silent f11_requests_lost_silently [servers] soak;
            apart silent f11_everything_lost_silently [servers] soak;
            site network f12_replies_swallowed [servers cluster] gate;
            apart silent f12_replies_lost_silently [servers] soak;
            site network f13_connections_reset [servers cluster] gate;
            site network f13_waiters_connection_reset [servers] gate;
            store cuts f14_every_cut_of_a_lock [servers] soak;
            store cuts f14_every_cut_of_a_waiter [servers] soak;
            store cuts f14_every_cut_of_a_downgrade [servers] soak;
            store cuts f14_every_cut_of_groups_and_elections [servers] soak;
            store cuts f14_every_cut_of_slots_and_values [servers] soak;
            store cuts f14_every_cut_of_connect_and_stop [servers] soak;
            site operator f22_session_ended [servers cluster] gate;
            site operator f23_entry_deleted [servers cluster] gate;
            site clock f29_client_clock_set [processes] soak;
            site guards f39_children_spawned_while_held [processes] soak;
            store dropped f41_locks_at_every_message [servers] soak;
            store dropped f41_recipes_at_every_message [servers] soak;
            store dropped f41_connect_and_stop_at_every_message [servers] soak;
            store dropped f42_releases_at_every_message [servers] soak;
            site guards f42_release_after_loss [processes] gate;
            site crash f43_exit_with_a_guard [processes] gate;
            site guards f43_runtime_dropped [processes] gate;
            site guards f43_tied_runtime_dropped [processes] gate;
            site identity f46_odd_names [processes] gate;
            site connecting f48_not_there [servers] gate;
            site connecting f48_not_all_there [servers] gate;
            site connecting f48_silent [servers] gate;
            site connecting f48_silent_first [servers] gate;
            site connecting f48_no_quorum [cluster] gate;
            site connecting f48_down_after_connect [servers] gate;
            site identity f51_member_exists [processes] gate;
            site network f57_idle_connections_forgotten [servers] soak;
            site named f69_one_address_silent [servers] soak;
            site named f69_two_addresses_silent [servers] soak;
            site named f69_one_name_unknown [servers] soak;
            store clock f74_a_clock_years_ahead [processes] soak;
        }
    };
    (@each table $($how:ident $module:ident $row:ident [$($group:ident)+] $where:ident;)+) => {
        &[$((stringify!($row), &[$(stringify!($group)),+])),+]
    };
    (@each [$part:ident $kind:ident $backend:ident]
        $($how:ident $module:ident $row:ident [$($group:ident)+] $where:ident;)+) => {
        $($($crate::fault_rows! { @part $part $where $kind $group [$how $backend $module $row] })+)+
    };
    (@part gate gate $($test:tt)+) => { $crate::fault_rows! { @if $($test)+ } };
    (@part soak soak $($test:tt)+) => { $crate::fault_rows! { @if $($test)+ } };
    (@part all $where:ident $($test:tt)+) => { $crate::fault_rows! { @if $($test)+ } };
    (@part $part:ident $where:ident $($test:tt)+) => {};
    // Which groups contain which kind of store.
    (@if files processes $test:tt) => { $crate::fault_rows! { @test 1 $test } };
    (@if server processes $test:tt) => { $crate::fault_rows! { @test 1 $test } };
    (@if server servers $test:tt) => { $crate::fault_rows! { @test 1 $test } };
    (@if three cluster $test:tt) => { $crate::fault_rows! { @test 3 $test } };
    (@if $kind:ident $group:ident $test:tt) => {};
    (@test $nodes:tt [site $backend:ident $module:ident $row:ident]) => {
        #[test]
        fn $row() {
            let backend = $crate::checks::Backend::$backend;
            let worker = env!("CARGO_BIN_EXE_worker");
            $crate::harness::rerun_if_starved(|| {
                let site = $crate::faults::Site::start(backend, $nodes, worker);
                $crate::faults::$module::$row(&site);
            });
        }
    };
    (@test $nodes:tt [store $backend:ident $module:ident $row:ident]) => {
        #[test]
        fn $row() -> ::coordination::Result<()> {
            let programs = $crate::checks::Programs {
                worker: env!("CARGO_BIN_EXE_worker"),
                forker: env!("CARGO_BIN_EXE_forker"),
            };
            let backend = $crate::checks::Backend::$backend;
            $crate::harness::rerun_if_starved(|| {
                $crate::faults::on_store(backend, programs, $crate::faults::$module::$row)
            })
        }
    };
    (@test $nodes:tt [apart $backend:ident $module:ident $row:ident]) => {
        #[test]
        fn $row() {
            let apart = $crate::faults::Apart {
                backend: $crate::checks::Backend::$backend,
                worker: env!("CARGO_BIN_EXE_worker"),
                test: concat!(module_path!(), "::", stringify!($row)),
            };
            $crate::harness::rerun_if_starved(|| $crate::faults::$module::$row(apart));
        }
    };
    // Written out, so that another kind of store is no macro call without tests, but an error.
    ($part:ident files $backend:ident) => { $crate::fault_rows! { @list [$part files $backend] } };
    ($part:ident server $backend:ident) => {
        $crate::fault_rows! { @list [$part server $backend] }
    };
    ($part:ident three $backend:ident) => { $crate::fault_rows! { @list [$part three $backend] } };
}

/// The name of each row, and its groups of stores.
pub(super) const SHARED: &[(&str, &[&str])] = crate::fault_rows!(@list table);

/// The timeout of a row; long, because some rows interrupt an operation at each of many places.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs a row on a store of the checks.
///
/// # Errors
///
/// Errors of the row.
pub fn on_store(
    backend: Backend,
    programs: Programs,
    row: impl AsyncFnOnce(&TestStore) -> Result<()>,
) -> Result<()> {
    let store = TestStore::shared(backend, programs);
    on_threads(async { tokio::time::timeout(LIMIT, row(&store)).await }).expect("the row ends")
}
