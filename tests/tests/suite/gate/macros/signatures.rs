//! Functions and methods with all kinds of signatures.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::pin::Pin;

use async_trait::async_trait;

use super::*;

struct Volume {
    id: u32,
    size: u64,
    coordinator: Coordinator,
}

impl Volume {
    #[synchronized("vol-<self.id>", coordinator = self.coordinator, guard = guard)]
    async fn name(&self) -> Result<String> {
        Ok(format!("{} of {}", guard.name(), self.size))
    }

    #[synchronized("vol-<self.id>", coordinator = self.coordinator)]
    async fn grow(&mut self, by: u64) -> Result<&mut u64> {
        self.size += by;
        Ok(&mut self.size)
    }

    #[synchronized("vol-<self.id>", coordinator = self.coordinator)]
    async fn into_size(mut self) -> Result<u64> {
        self.size += 1;
        Ok(self.size)
    }

    #[synchronized("vol-<self.id>", coordinator = self.coordinator)]
    async fn shared(self: Arc<Self>) -> Result<u64> {
        Ok(self.size)
    }

    /// An associated function that is not a method.
    #[synchronized("vol-new", coordinator = coordinator)]
    pub(super) async fn new(coordinator: Coordinator) -> Result<Self> {
        Ok(Self { id: 1, size: 10, coordinator })
    }

    #[synchronized("vol-<self.id>", coordinator = self.coordinator)]
    fn shrink(&mut self, mut by: u64) -> Result<&mut u64> {
        by = by.min(self.size);
        self.size -= by;
        Ok(&mut self.size)
    }
}

#[tokio::test]
async fn methods_take_self_in_every_way() -> Result {
    let mut volume = Volume::new(connect("methods").await?).await?;
    assert_eq!(volume.name().await?, "vol-1 of 10");
    *volume.grow(5).await? += 1;
    assert_eq!(volume.size, 16);
    let volume = spawn_blocking(move || {
        *volume.shrink(6)? += 1;
        Ok::<_, Error>(volume)
    });
    let volume = volume.await.expect("the body does not panic")?;
    assert_eq!(volume.size, 11);
    let coordinator = volume.coordinator.clone();
    assert_eq!(volume.into_size().await?, 12);
    assert_eq!(Arc::new(Volume::new(coordinator).await?).shared().await?, 10);
    Ok(())
}

#[tokio::test]
async fn generics_lifetimes_and_impl_trait() -> Result {
    #[synchronized("gen-<key>", coordinator = c)]
    async fn pick<'a, K, V, const N: usize>(
        c: &Coordinator,
        key: K,
        map: &'a BTreeMap<K, [V; N]>,
    ) -> Result<Option<&'a V>>
    where
        K: Ord + Display + Send + Sync,
        V: Sync,
    {
        Ok(map.get(&key).and_then(|values| values.first()))
    }

    #[synchronized("impl-<name.as_ref()>-<f_name>", coordinator = c, guard = g)]
    async fn argument(c: &Coordinator, name: impl AsRef<str>) -> Result<String> {
        Ok(g.name().to_owned())
    }

    #[synchronized("elided", coordinator = c)]
    fn elided(c: Coordinator, text: &str) -> Result<&str> {
        Ok(&text[1..])
    }

    let c = connect("generics").await?;
    let map = BTreeMap::from([(1, ["one"])]);
    assert_eq!(pick(&c, 1, &map).await?, Some(&"one"));
    assert_eq!(argument(&c, "x".to_owned()).await?, "impl-x-argument");
    let cut = spawn_blocking(move || elided(c, "xyz")).await.expect("the body does not panic")?;
    assert_eq!(cut, "yz");
    Ok(())
}

#[async_trait]
trait Store: Sync {
    async fn put(&self, key: u8, pair: (u8, u8)) -> Result<String, Failure>;
    async fn count(&mut self, by: usize) -> Result<usize>;

    fn coordinator(&self) -> &Coordinator;

    #[synchronized("default-<id>", coordinator = self.coordinator(), guard = g)]
    async fn defaulted(&self, id: &str) -> Result<String> {
        Ok(g.name().to_owned())
    }
}

struct Disk {
    coordinator: Coordinator,
    id: u8,
    count: usize,
}

#[async_trait]
impl Store for Disk {
    #[synchronized("disk-<self.id>-<key>-<a>-<b>-<f_name>", coordinator = self.coordinator, guard = g)]
    async fn put(&self, key: u8, (a, b): (u8, u8)) -> Result<String, Failure> {
        if key == 0 {
            return Err(Failure::Own);
        }
        let _: i32 = key.to_string().parse()?;
        Ok(g.name().to_owned())
    }

    #[synchronized("disk-<self.id>", coordinator = self.coordinator)]
    async fn count(&mut self, mut by: usize) -> Result<usize> {
        by += 1;
        self.count += by;
        Ok(self.count)
    }

    fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }
}

#[tokio::test]
async fn async_trait_methods_hold_the_lock_inside_the_future() -> Result {
    let mut disk = Disk { coordinator: connect("trait").await?, id: 3, count: 0 };
    let lock = disk.coordinator.lock("disk-3-4-5-6-put")?;
    assert_eq!(disk.put(4, (5, 6)).await.expect("it is free"), "disk-3-4-5-6-put");
    assert!(is_free(&lock).await?);
    assert!(matches!(disk.put(0, (5, 6)).await, Err(Failure::Own)));
    assert_eq!(disk.defaulted("d").await?, "default-d");
    assert_eq!(disk.count(1).await?, 2);
    assert_eq!(disk.count(1).await?, 4);

    let holder = lock.acquire(None).await?;
    let blocked = timeout(Duration::from_millis(50), disk.put(4, (5, 6)));
    assert!(blocked.await.is_err(), "the lock is taken");
    holder.release().await
}

#[tokio::test]
async fn functions_that_return_a_future_hold_it_inside() -> Result {
    #[synchronized("boxed-<id>", coordinator = c, guard = g)]
    fn boxed<'a>(
        c: &'a Coordinator,
        id: u8,
    ) -> Pin<Box<dyn Future<Output = Result<String>> + Send + 'a>> {
        let offset = 1;
        Box::pin(async move { Ok(format!("{}+{offset}", g.name())) })
    }

    #[synchronized("opaque-<id>", coordinator = c, guard = g)]
    fn opaque(c: &Coordinator, id: u8) -> impl Future<Output = Result<String>> + Send {
        let text = id.to_string();
        async move { Ok(format!("{text}:{}", g.name())) }
    }

    let c = connect("futures").await?;
    assert_eq!(boxed(&c, 1).await?, "boxed-1+1");
    assert_eq!(opaque(&c, 2).await?, "2:opaque-2");
    Ok(())
}
