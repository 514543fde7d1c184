//! The fault rows on `file://` that the gate leaves out.

coordination_tests::fault_rows!(soak files File);
