//! The size of the future of a synchronized function, compared with that of the plain function.

use super::*;

/// X2a: how many bytes the attribute may add to the future at each level of calls.
const MOST: usize = 512;
/// How many levels of calls there are above the innermost function.
const LEVELS: usize = 8;

/// The sizes of the futures of one kind of function, for chains of 0 to 8 levels.
type Sizes = [usize; LEVELS + 1];

fn size<T>(future: T) -> usize {
    size_of_val(&future)
}

/// Makes a module with an innermost function and eight levels above it, each of which calls the level below.
macro_rules! chain {
    ($module:ident, [$($attribute:tt)*], ($($parameter:ident: $type:ty = $value:expr)?), $leaf:block) => {
        mod $module {
            use super::*;

            $($attribute)*
            async fn level0($($parameter: $type)?) -> Result<u8> $leaf

            chain!(@ [$($attribute)*] ($($parameter: $type)?)
                level1 level0, level2 level1, level3 level2, level4 level3,
                level5 level4, level6 level5, level7 level6, level8 level7);

            pub(super) fn sizes() -> Sizes {
                $(let $parameter: $type = $value;)?
                [
                    size(level0($($parameter)?)), size(level1($($parameter)?)),
                    size(level2($($parameter)?)), size(level3($($parameter)?)),
                    size(level4($($parameter)?)), size(level5($($parameter)?)),
                    size(level6($($parameter)?)), size(level7($($parameter)?)),
                    size(level8($($parameter)?)),
                ]
            }
        }
    };
    (@ $attribute:tt $parameter:tt $($upper:ident $lower:ident),*) => {
        $(chain!(# $attribute $parameter $upper $lower);)*
    };
    (# [$($attribute:tt)*] ($($parameter:ident: $type:ty)?) $upper:ident $lower:ident) => {
        $($attribute)*
        pub(super) async fn $upper($($parameter: $type)?) -> Result<u8> {
            $lower($($parameter)?).await
        }
    };
}

const LEAF: usize = 1024;

macro_rules! leaf {
    ($module:ident, [$($attribute:tt)*]) => {
        chain!($module, [$($attribute)*], (), {
            let bytes = std::hint::black_box([1; LEAF]);
            yield_now().await;
            Ok(bytes[3])
        });
    };
}

macro_rules! parameter {
    ($module:ident, [$($attribute:tt)*]) => {
        chain!($module, [$($attribute)*], (bytes: [u8; LEAF] = [1; LEAF]), {
            yield_now().await;
            Ok(bytes[3])
        });
    };
}

macro_rules! named {
    ($module:ident, [$($attribute:tt)*]) => {
        chain!($module, [$($attribute)*], (id: &[u8; LEAF] = &[1; LEAF]), {
            yield_now().await;
            Ok(id[3])
        });
    };
}

leaf!(plain_leaf, []);
leaf!(locked_leaf, [#[synchronized("a")]]);
leaf!(locked_by_two, [#[synchronized("a", "b", timeout = "1s", guard = _guards)]]);
leaf!(shared, [#[synchronized("a", shared)]]);
leaf!(permitted, [#[synchronized("a", permits = 3, guard = _permit)]]);
leaf!(finished, [#[synchronized("a", on_lost = "finish")]]);
leaf!(documented, [#[synchronized("a")] #[doc = "Text."] #[allow(unused)]]);
leaf!(traced, [#[tracing::instrument(skip_all)]]);
parameter!(plain_parameter, []);
parameter!(locked_parameter, [#[synchronized("a")]]);
parameter!(named_parameter, [#[synchronized("a-<bytes.len()>")]]);
parameter!(documented_parameter, [
    #[synchronized("a")]
    #[must_use = "Text."]
    #[cfg_attr(all(), doc = "Text.", inline)]
]);
named!(plain_name, []);
named!(locked_name, [#[synchronized("a-<id.len()>")]]);

/// Like `chain!`, but for methods that take `self` by value, where `Self` has `LEAF` bytes.
macro_rules! methods {
    ($module:ident, [$($attribute:tt)*]) => {
        mod $module {
            use super::*;

            struct Large {
                bytes: [u8; LEAF],
            }

            impl Large {
                $($attribute)*
                async fn level0(self) -> Result<u8> {
                    yield_now().await;
                    Ok(self.bytes[3])
                }
            }

            methods!(@ [$($attribute)*]
                level1 level0, level2 level1, level3 level2, level4 level3,
                level5 level4, level6 level5, level7 level6, level8 level7);

            pub(super) fn sizes() -> Sizes {
                let large = || Large { bytes: [1; LEAF] };
                [
                    size(large().level0()), size(large().level1()), size(large().level2()),
                    size(large().level3()), size(large().level4()), size(large().level5()),
                    size(large().level6()), size(large().level7()), size(large().level8()),
                ]
            }
        }
    };
    (@ $attribute:tt $($upper:ident $lower:ident),*) => {
        $(methods!(# $attribute $upper $lower);)*
    };
    (# [$($attribute:tt)*] $upper:ident $lower:ident) => {
        impl Large {
            $($attribute)*
            async fn $upper(self) -> Result<u8> {
                self.$lower().await
            }
        }
    };
}

methods!(plain_method, []);
methods!(locked_method, [#[synchronized("a")]]);
methods!(named_method, [#[synchronized("a-<self.bytes.len()>", guard = _guard)]]);

#[test]
fn a_level_costs_at_most_512_bytes() {
    eprintln!("{:>21}: {:?}", "tracing's instrument", traced::sizes());
    let table = [
        ("leaf", locked_leaf::sizes(), plain_leaf::sizes()),
        ("two names", locked_by_two::sizes(), plain_leaf::sizes()),
        ("shared", shared::sizes(), plain_leaf::sizes()),
        ("permits", permitted::sizes(), plain_leaf::sizes()),
        ("finish", finished::sizes(), plain_leaf::sizes()),
        ("documented", documented::sizes(), plain_leaf::sizes()),
        ("parameter", locked_parameter::sizes(), plain_parameter::sizes()),
        ("parameter in the name", named_parameter::sizes(), plain_parameter::sizes()),
        ("reference", locked_name::sizes(), plain_name::sizes()),
        ("documented parameter", documented_parameter::sizes(), plain_parameter::sizes()),
        ("method", locked_method::sizes(), plain_method::sizes()),
        ("self in the name", named_method::sizes(), plain_method::sizes()),
    ];
    for (what, locked, plain) in table {
        eprintln!("{what:>21}: {locked:?}, plain {plain:?}");
    }
    for (what, locked, plain) in table {
        let more = |level: usize| locked[level].saturating_sub(plain[level]);
        for level in 0..=LEVELS {
            assert!(more(level) <= MOST * (level + 1), "{what}, level {level}: {}", more(level));
        }
    }
}

#[tokio::test]
async fn other_futures_that_are_passed_on_are_not_copied() -> Result {
    async fn body() -> u8 {
        let bytes = std::hint::black_box([1; LEAF]);
        yield_now().await;
        bytes[3]
    }
    let c = connect("protected-size").await?;
    let (one, both) = (c.lock("a")?.acquire(None).await?, c.locks(["b", "c"])?);
    let both = both.acquire(None).await?;
    let plain = size(body());
    for (what, protected) in
        [("one", size(one.protect(body()))), ("both", size(both.protect(body())))]
    {
        assert!(protected <= plain + MOST, "{what}: {protected}, plain {plain}");
    }
    assert_eq!((one.protect(body()).await?, both.protect(body()).await?), (1, 1));
    c.stop().await
}

struct Deep {
    coordinator: Coordinator,
}

macro_rules! deep {
    ($($upper:ident $lower:ident $name:literal),*) => {
        impl Deep {
            #[synchronized("leaf", coordinator = self.coordinator)]
            async fn level0(&self, bytes: [u8; 64]) -> Result<u8> {
                let page = std::hint::black_box([bytes[0]; 4096]);
                yield_now().await;
                Ok(page[4000])
            }
            $(
                #[synchronized($name, coordinator = self.coordinator)]
                async fn $upper(&self, bytes: [u8; 64]) -> Result<u8> {
                    self.$lower(bytes).await
                }
            )*
        }
    };
}

deep!(level1 level0 "1", level2 level1 "2", level3 level2 "3", level4 level3 "4", level5 level4 "5", level6 level5 "6");

#[test]
fn six_levels_fit_on_a_small_stack() {
    let small = std::thread::Builder::new().stack_size(256 * 1024).spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let deep = Deep { coordinator: connect("deep").await? };
            deep.level6([7; 64]).await
        })
    });
    let page = small.expect("a thread").join().expect("no overflow").expect("they are free");
    assert_eq!(page, 7);
}

/// rustc's recursion limit allows a task to have about 32 levels of calls of plain async functions. This module has
/// two thirds as many levels of synchronized functions, which also have to compile.
mod two_thirds {
    use super::*;

    macro_rules! levels {
        ($upper:ident $lower:ident $($rest:ident)*) => {
            #[synchronized("a", coordinator = c)]
            pub(super) async fn $upper(c: Coordinator) -> Result {
                Box::pin(c.stop()).await?;
                $lower(c).await
            }
            levels!($lower $($rest)*);
        };
        ($leaf:ident) => {
            async fn $leaf(c: Coordinator) -> Result {
                c.stop().await
            }
        };
    }

    levels!(l22 l21 l20 l19 l18 l17 l16 l15 l14 l13 l12 l11 l10 l9 l8 l7 l6 l5 l4 l3 l2 l1 leaf);
}

#[tokio::test]
async fn a_task_of_many_levels_compiles() -> Result {
    let c = connect("levels").await?;
    // The innermost call stops the coordinator, so later calls are refused. What matters is that this compiles.
    let ended = tokio::spawn(two_thirds::l22(c)).await.expect("it does not panic");
    assert_eq!(ended.expect_err("it was stopped").kind(), ErrorKind::Closed);
    Ok(())
}
