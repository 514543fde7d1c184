//! Random numbers: from one place, so that a simulation can choose the seed.

/// Numbers that nobody can guess.
#[cfg(not(feature = "simulation"))]
pub(crate) fn rng() -> rand::rngs::ThreadRng {
    rand::rng()
}

/// Numbers that nobody can guess, or in a simulation those that follow from its seed.
#[cfg(feature = "simulation")]
pub(crate) fn rng() -> crate::simulation::Random {
    crate::simulation::Random
}
