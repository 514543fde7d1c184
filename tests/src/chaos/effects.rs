//! What a holder does while it holds an object: it changes a register of the resource.

use std::{path::Path, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::sleep,
};

use super::{
    nanos,
    resource::{ANSWER, Ask, Request},
};

/// The connection of a client to the resource.
#[derive(Debug)]
pub(super) struct Effects {
    stream: UnixStream,
    client: u32,
}

/// The grant under which a holder changes a register.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hand {
    pub(super) register: u32,
    pub(super) attempt: u64,
    pub(super) token: u64,
}

impl Effects {
    pub(super) async fn connect(socket: &Path, client: u32) -> Self {
        let stream = UnixStream::connect(socket).await.expect("the resource outlives its clients");
        Self { stream, client }
    }

    /// Adds one to both halves of the register, and waits for `pause` between reading and writing.
    ///
    /// Before the write, this does not check whether the lock is still held. Careless programs do not check it either.
    pub(super) async fn add_one(&mut self, hand: Hand, pause: Duration) {
        let (_, bare) = self.ask(hand, Ask::BareRead, nanos(pause)).await;
        let (is_fresh, fenced) = self.ask(hand, Ask::Read, 0).await;
        sleep(pause).await;
        if is_fresh {
            self.ask(hand, Ask::Write, fenced + 1).await;
        }
        self.ask(hand, Ask::BareWrite, bare + 1).await;
    }

    async fn ask(&mut self, hand: Hand, ask: Ask, value: u64) -> (bool, u64) {
        let Hand { register, attempt, token } = hand;
        let request = Request { ask, register, client: self.client, attempt, token, value };
        let mut answer = [0; ANSWER];
        let exchange = async {
            self.stream.write_all(&request.encode()).await?;
            self.stream.read_exact(&mut answer).await
        };
        exchange.await.expect("the resource outlives its clients");
        let (words, _) = answer.as_chunks::<8>();
        (u64::from_le_bytes(words[0]) == 1, u64::from_le_bytes(words[1]))
    }
}
