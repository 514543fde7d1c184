//! All checks of each store in the settings in which all its promises hold: users and tokens, proxies, Sentinels, slots
//! that move.

coordination_tests::conformance!(settings);
