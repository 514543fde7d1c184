//! The tests of `docs/testing-your-code.md`, as often as it takes to see one that fails at random.

use crate::gate::testing::run_the_page;

#[test]
fn five_tests_of_one_program_do_not_meet() {
    run_the_page(200);
}
