//! How names are made from templates and arguments.

use std::collections::HashMap;

use super::*;

struct Share {
    id: u32,
    at: (u8, (u8, u8)),
}

impl Share {
    fn label(&self) -> String {
        format!("share{}", self.id)
    }
}

struct Pair {
    left: u8,
    right: u8,
}

const SHARE: Share = Share { id: 7, at: (1, (2, 3)) };

#[tokio::test]
async fn every_form_of_path() -> Result {
    #[synchronized(
        "<f_name>/{id}/<share.id>/{share.at.0}/<share.at.1.1>/<share.label()>/{share.label().len()}",
        coordinator = c,
        guard = guard
    )]
    async fn paths(c: &Coordinator, id: &str, share: Share) -> Result<String> {
        // The name is made from the parameters without taking them, so the body still owns them and can move them.
        let _moved = share;
        Ok(guard.name().to_owned())
    }

    let c = connect("paths").await?;
    assert_eq!(paths(&c, "x", SHARE).await?, "paths/x/7/1/3/share7/6");
    Ok(())
}

#[tokio::test]
async fn keys_are_integers_or_bare_text() -> Result {
    #[synchronized("{snap[name]}-<snap[a.b: c]>-{list[1]}-<list[0].len()>", coordinator = c, guard = g)]
    async fn keys(c: &Coordinator, snap: HashMap<String, u8>, list: Vec<&str>) -> Result<String> {
        let _moved = (snap, list);
        Ok(g.name().to_owned())
    }

    let c = connect("keys").await?;
    let snap = HashMap::from([("name".to_owned(), 1), ("a.b: c".to_owned(), 2)]);
    assert_eq!(keys(&c, snap, vec!["abc", "d"]).await?, "1-2-d-3");
    Ok(())
}

#[tokio::test]
async fn format_specs_apply() -> Result {
    #[synchronized("{id:08x}|<id:#b>|{text:->6}|{text:?}|{ratio:.2}", guard = g, coordinator = c)]
    async fn specs(c: &Coordinator, id: u32, text: &str, ratio: f64) -> Result<String> {
        Ok(g.name().to_owned())
    }

    #[synchronized("{text:_>width$}|{ratio:.places$}", guard = g, coordinator = c)]
    async fn named(
        c: &Coordinator,
        text: &str,
        ratio: f64,
        width: usize,
        places: usize,
    ) -> Result<String> {
        Ok(g.name().to_owned())
    }

    let c = connect("specs").await?;
    assert_eq!(specs(&c, 255, "ab", 0.125).await?, "000000ff|0b11111111|----ab|\"ab\"|0.12");
    assert_eq!(named(&c, "ab", 0.125, 4, 1).await?, "__ab|0.1");
    Ok(())
}

#[tokio::test]
async fn doubled_marks_are_the_characters() -> Result {
    #[synchronized("<<id>>-{{id}}-{{<id>}}", guard = g, coordinator = c)]
    async fn marks(c: &Coordinator, id: u8) -> Result<String> {
        Ok(g.name().to_owned())
    }

    #[synchronized("plain", guard = g, coordinator = c)]
    async fn plain(c: &Coordinator) -> Result<String> {
        Ok(g.name().to_owned())
    }

    let c = connect("marks").await?;
    assert_eq!(marks(&c, 5).await?, "<id>-{id}-{5}");
    assert_eq!(plain(&c).await?, "plain");
    Ok(())
}

#[tokio::test]
async fn destructured_and_raw_parameters_have_names() -> Result {
    #[synchronized("<a>-<b>-<left>-<other>-<first>-<whole.0>-<r#type>-<type>", guard = g, coordinator = c)]
    async fn bindings(
        c: &Coordinator,
        (a, [b, ..]): (u8, [u8; 2]),
        Pair { left, right: other }: Pair,
        whole @ (first, _): (u8, u8),
        r#type: &str,
    ) -> Result<String> {
        Ok(g.name().to_owned())
    }

    let c = connect("bindings").await?;
    let pair = Pair { left: 3, right: 4 };
    assert_eq!(bindings(&c, (1, [2, 0]), pair, (5, 6), "t").await?, "1-2-3-4-5-5-t-t");
    Ok(())
}

#[tokio::test]
async fn a_literal_may_come_through_a_macro() -> Result {
    macro_rules! synchronized_on {
        ($template:literal, $timeout:literal) => {
            #[synchronized($template, timeout = $timeout, coordinator = c, guard = g)]
            async fn named(c: &Coordinator, id: u8) -> Result<String> {
                Ok(g.name().to_owned())
            }
        };
    }
    synchronized_on!("passed-<id>", "5s");

    let c = connect("passed").await?;
    assert_eq!(named(&c, 9).await?, "passed-9");
    Ok(())
}

#[tokio::test]
async fn a_name_that_renders_to_nothing_is_refused() -> Result {
    #[synchronized("<name>", coordinator = c)]
    async fn anything(c: &Coordinator, name: &str) -> Result {
        unreachable!("the body of {name:?} runs under no lock")
    }

    let c = connect("nothing").await?;
    let refused = anything(&c, "").await.expect_err("an empty name");
    assert_eq!(refused.kind(), ErrorKind::Name);
    Ok(())
}

const PREFIX: &str = "app";

mod limits {
    pub(super) const LARGEST: u8 = 9;
}

struct Kind<const N: usize>;

impl<const N: usize> Kind<N> {
    const KIND: &'static str = "kind";

    #[synchronized("<PREFIX>-{limits::LARGEST:03}-<Self::KIND>-<N>-<M>-<f_name>", guard = g, coordinator = c)]
    async fn name<const M: u8>(c: &Coordinator) -> Result<String> {
        Ok(g.name().to_owned())
    }
}

#[tokio::test]
async fn constants_are_names_like_parameters() -> Result {
    let c = connect("constants").await?;
    assert_eq!(Kind::<3>::name::<4>(&c).await?, "app-009-kind-3-4-name");
    Ok(())
}

#[tokio::test]
async fn any_expression_may_give_a_name() -> Result {
    #[synchronized(name = PREFIX, name = concat!("b", "-c"), name = format!("d-{id}"), guard = g, coordinator = c)]
    async fn names(c: &Coordinator, id: u8) -> Result<Vec<String>> {
        Ok(g.iter().map(|guard| guard.name().to_owned()).collect())
    }

    #[synchronized(name = id, guard = g, coordinator = c)]
    fn name(c: coordination::blocking::Coordinator, id: &str) -> Result<String> {
        Ok(format!("{id} is {}", g.name()))
    }

    let c = connect("expressions").await?;
    assert_eq!(names(&c, 1).await?, ["app", "b-c", "d-1"]);
    let named = spawn_blocking(move || name(c.into(), "e")).await.expect("the body does not panic");
    assert_eq!(named?, "e is e");
    Ok(())
}
