//! Requests to an agent, and its answers.

use std::time::Duration;

use reqwest::Method;
use serde::de::DeserializeOwned;

use super::error::{from_status, garbled};
use crate::error::{Error, Result};

#[derive(Clone)]
pub(super) struct Request {
    pub(super) method: Method,
    /// The part of the URL after `/v1/`, with the query.
    pub(super) path: String,
    pub(super) body: Vec<u8>,
    /// Whether the request only reads, so that it can be sent again if it is not known whether it was carried out.
    pub(super) is_read: bool,
    /// Whether the request is a blocking query, which is answered late if nothing changes.
    pub(super) waits: bool,
}

impl Request {
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self { is_read: true, ..Self::new(Method::GET, path.into(), Vec::new()) }
    }

    pub(super) fn put(path: impl Into<String>, body: Vec<u8>) -> Self {
        Self::new(Method::PUT, path.into(), body)
    }

    pub(super) fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path.into(), Vec::new())
    }

    fn new(method: Method, path: String, body: Vec<u8>) -> Self {
        Self { method, path, body, is_read: false, waits: false }
    }

    /// This request as a blocking query: the server answers it when something has changed since `index`, or after the time
    /// `longest`. If `index` is 0, the server answers at once.
    pub(super) fn waiting(self, index: u64, longest: Duration) -> Self {
        let query = self.with(&format!("wait={}ms", longest.as_millis()));
        let query = if index > 0 { query.with(&format!("index={index}")) } else { query };
        Self { waits: true, ..query }
    }

    /// This request with `name` or `name=value` in its query.
    pub(super) fn with(mut self, query: &str) -> Self {
        self.path.push(if self.path.contains('?') { '&' } else { '?' });
        self.path.push_str(query);
        self
    }
}

pub(super) struct Answer {
    pub(super) status: u16,
    /// The index of Consul's log that the answer names: the next blocking query is sent with it, and waits for later changes. 0:
    /// the answer names none.
    pub(super) index: u64,
    pub(super) body: Vec<u8>,
}

impl Answer {
    /// The body; an error if the answer is a refusal, which is any status but 200.
    pub(super) fn done(self, operation: &'static str) -> Result<Vec<u8>> {
        match self.status {
            200 => Ok(self.body),
            _ => Err(self.refusal(operation)),
        }
    }

    pub(super) fn refusal(&self, operation: &'static str) -> Error {
        from_status(operation, self.status, &self.text())
    }

    /// Whether another service than a Consul agent may have given this answer. An agent answers 200 and 409 with JSON, 403 with a
    /// text that we know, and 404 for an absent key with an index. Answers with a status from 500 on are taken for an agent's.
    pub(super) fn may_be_of_others(&self) -> bool {
        match self.status {
            200 | 409 => {
                !matches!(self.body.first(), Some(b'{' | b'[' | b'"' | b't' | b'f' | b'n'))
            }
            403 => {
                let text = self.text();
                !text.contains("ACL not found") && !text.contains("Permission denied")
            }
            404 => self.index == 0,
            500.. => false,
            _ => true,
        }
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub(super) fn parsed<T: DeserializeOwned>(operation: &'static str, body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| {
        garbled(operation, "the answer is not what Consul answers").with_source(error)
    })
}
