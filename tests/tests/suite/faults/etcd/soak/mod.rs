//! The fault rows on `etcd://` that the gate leaves out, and those of three servers.

mod restarts;
mod restored;
mod silent;

coordination_tests::fault_rows!(soak server Etcd);

mod of_three {
    coordination_tests::fault_rows!(all three Etcd);
}
