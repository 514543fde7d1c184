//! Every check of a store in the settings that promise nothing less: users and tokens, proxies, Sentinels and
//! slots that move.

coordination_tests::conformance!(settings);
