//! The rows of the fault matrix on `file://` that the gate leaves out.

coordination_tests::fault_rows!(soak file File);
