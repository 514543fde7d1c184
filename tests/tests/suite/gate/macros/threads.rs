//! Plain functions, which block their thread.

use coordination::blocking;

use super::*;

#[synchronized("file-<id>", "dir", coordinator = c, timeout = PATIENCE)]
fn visit(c: &blocking::Coordinator, id: u8, room: &Room) -> Result<u8> {
    room.enter();
    std::thread::sleep(Duration::from_millis(5));
    room.leave();
    if id == 9 {
        return Ok(0);
    }
    Ok(id)
}

#[test]
fn threads_exclude_each_other() -> Result {
    let c = blocking::Coordinator::connect("memory://macros-threads")?;
    let room = Room::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|id| {
                scope.spawn({
                    let (c, room) = (&c, &room);
                    move || visit(c, id, room)
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("the body does not panic").map(|_| ()))
    })?;
    assert_eq!(visit(&c, 9, &room)?, 0);
    assert_eq!(room.most.load(Ordering::SeqCst), 1);
    assert_eq!(room.visits.load(Ordering::SeqCst), 5);
    assert!(c.lock("file-9")?.try_acquire()?.is_some());
    Ok(())
}
