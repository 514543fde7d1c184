//! H7: the range of each field and parameter, as the service describes it in `/openapi.json`: its ends are taken, and what is beyond
//! them is refused.

use coordination_tests::harness::rerun_if_starved;
use serde_json::{Map, Value, json};

use super::safety::{made, tokens};
use crate::Store;
use crate::http::{Answer, Service, ask, hold};

/// A text of JSON, and whether it is in the range.
type Tried = (String, bool);

#[test]
fn h7_the_range_of_each_field_is_as_described() {
    rerun_if_starved(|| {
        let store = Store::file();
        let boss = made(&store, "boss", "*", "admin");
        let file = tokens(&store, std::slice::from_ref(&boss));
        let service = Service::start(&store, &format!("--tokens {}", file.display()));
        let description = service.get("/openapi.json").json();
        let bearer = format!("Bearer {}", boss.0);
        let (service, description) = (&service, &description);
        let mut ranges = Ranges { service, description, bearer, asked: 0 };
        for (path, operations) in description["paths"].as_object().expect("it has paths") {
            for method in ["get", "post", "put", "delete"] {
                if let Some(operation) = operations.get(method) {
                    ranges.of_parameters(method, path, operation);
                    ranges.of_body(method, path, operation);
                }
            }
        }
        assert!(ranges.asked > 300, "only {} requests", ranges.asked);
        // Nothing that was refused has made the service forget the others.
        assert_eq!(ranges.send("POST", "/v1/locks/x", &[], "").status, 201);
    });
}

#[test]
fn the_description_is_sent_once() {
    rerun_if_starved(|| {
        let store = Store::file();
        let service = Service::start(&store, "");
        let get = |tags: &str| {
            let headers = [("If-None-Match", tags)];
            ask(&service.native, "GET", "/openapi.json", &headers, "")
        };
        let first = get("\"x\"");
        assert_eq!((first.status, &first.json()["openapi"]), (200, &json!("3.1.0")));
        let tag = first.header("etag").expect("it has one").to_owned();
        for known in [tag.as_str(), "*", &format!("\"x\", {tag}")] {
            let again = get(known);
            assert_eq!((again.status, again.body.as_str()), (304, ""), "{known}");
        }
        assert!(service.get("/v1/info").json()["routes"].as_array().expect("a list").len() > 20);
    });
}

struct Ranges<'a> {
    service: &'a Service,
    description: &'a Value,
    /// Who may do everything: of others not all is looked at.
    bearer: String,
    asked: usize,
}

impl Ranges<'_> {
    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let headers: Vec<_> =
            [("Authorization", self.bearer.as_str())].iter().chain(headers).copied().collect();
        ask(&self.service.native, method, path, &headers, body)
    }

    /// What is meant, if this only says where it stands.
    fn resolved<'v>(&'v self, value: &'v Value) -> &'v Value {
        match value["$ref"].as_str() {
            Some(at) => self.description.pointer(at.trim_start_matches('#')).expect("it is there"),
            None => value,
        }
    }

    /// The path of something that nobody has used: of a hold, it is one that may have this field.
    fn path(&mut self, path: &str, field: &str) -> String {
        self.asked += 1;
        let name = format!("h7-{}", self.asked);
        if !path.contains("{id}") {
            return path.replace("{name}", &name);
        }
        let (recipe, body) = match field {
            "value" => ("elections", "{}".to_owned()),
            "capabilities" => ("groups", json!({ "member": name }).to_string()),
            _ => ("locks", "{}".to_owned()),
        };
        let held = self.send("POST", &format!("/v1/{recipe}/{name}"), &[], &body);
        assert_eq!(held.status, 201, "{held:?}");
        hold(&held.json())
    }

    fn of_parameters(&mut self, method: &str, path: &str, operation: &Value) {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let parameter = self.resolved(parameter).clone();
            let (name, schema) =
                (parameter["name"].as_str().expect("a name"), &parameter["schema"]);
            for (text, is_good) in ends_of(schema, 0) {
                let at = self.path(path, "");
                let method = method.to_uppercase();
                let answer = match parameter["in"].as_str() {
                    Some("query") if schema["type"] == "integer" => {
                        self.send(&method, &format!("{at}?{name}={text}"), &[], "")
                    }
                    Some("header") => {
                        let body = self.body(&self.example(operation), None);
                        self.send(&method, &at, &[(name, text.trim_matches('"'))], &body)
                    }
                    _ => continue,
                };
                assert!(answer.status > 0, "{method} {at} {name}: {text}: no answer");
                let is_taken = answer.status != 400;
                assert_eq!(is_taken, is_good, "{method} {at} {name}: {text}: {answer:?}");
            }
        }
    }

    fn example(&self, operation: &Value) -> Map<String, Value> {
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        schema["example"].as_object().cloned().unwrap_or_default()
    }

    /// An object with these fields, and with this text as one of them. What has names instead of a path with one has a name that nobody
    /// has used.
    fn body(&self, fields: &Map<String, Value>, field: Option<(&str, &str)>) -> String {
        let mut fields = fields.clone();
        if let Some(names) = fields.get_mut("names") {
            *names = json!([format!("h7-{}-only", self.asked)]);
        }
        with(&fields, field)
    }

    fn of_body(&mut self, method: &str, path: &str, operation: &Value) {
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let example = self.example(operation);
        for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
            let schema = self.resolved(schema).clone();
            for (text, is_good) in ends_of(&schema, self.asked) {
                let body = self.body(&example, Some((field, &text)));
                self.ask(method, path, field, field, &body, is_good);
            }
            let item = &schema["items"];
            for (inner, of) in item["properties"].as_object().into_iter().flatten() {
                for (text, is_good) in ends_of(of, self.asked) {
                    let item = with(&least(item), Some((inner, &text)));
                    let body = self.body(&example, Some((field, &format!("[{item}]"))));
                    let at = format!("{field}[0].{inner}");
                    self.ask(method, path, field, &at, &body, is_good);
                }
            }
        }
        for field in schema["required"].as_array().into_iter().flatten() {
            let field = field.as_str().expect("a name");
            let mut without = example.clone();
            without.remove(field);
            let body = self.body(&without, None);
            self.ask(method, path, field, field, &body, false);
        }
        if schema["additionalProperties"] == false {
            let body = self.body(&example, Some(("no-such-field", "1")));
            self.ask(method, path, "no-such-field", "no-such-field", &body, false);
        }
    }

    /// Sends it, and looks whether it is refused for this field.
    fn ask(
        &mut self,
        method: &str,
        path: &str,
        field: &str,
        at: &str,
        body: &str,
        is_good: bool,
    ) -> Answer {
        let (path, method) = (self.path(path, field), method.to_uppercase());
        // A place is kept for who has a key.
        let key = format!("h7-{}", self.asked);
        let key = [("Idempotency-Key", key.as_str())];
        let headers = &key[..usize::from(field == "keep_place_ms")];
        let answer = self.send(&method, &path, headers, body);
        let shown: String = body.chars().take(200).collect();
        if is_good {
            let status = answer.status;
            assert!(
                status != 400 && (200..500).contains(&status),
                "{method} {path} {shown}: {answer:?}"
            );
        } else {
            assert_eq!(answer.status, 400, "{method} {path} {shown}: {answer:?}");
            let told = answer.json();
            let errors = told["errors"].as_array().expect("a list");
            assert!(errors.iter().any(|error| error["field"] == at), "{method} {path} {told}");
        }
        answer
    }
}

/// An object with these fields, and with this text as one of them.
fn with(fields: &Map<String, Value>, field: Option<(&str, &str)>) -> String {
    let others = fields.iter().filter(|(name, _)| field.is_none_or(|(own, _)| own != *name));
    let others = others.map(|(name, value)| format!("\"{name}\":{value}"));
    let own = field.map(|(name, text)| format!("\"{name}\":{text}"));
    format!("{{{}}}", others.chain(own).collect::<Vec<_>>().join(","))
}

/// An object that has what it needs.
fn least(schema: &Value) -> Map<String, Value> {
    let needed = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    needed.map(|field| (field.to_owned(), schema["properties"][field]["minimum"].clone())).collect()
}

/// The ends of a range, and what is one beyond them; `number` makes what has to be different from others.
fn ends_of(schema: &Value, number: usize) -> Vec<Tried> {
    let number_of = |key: &str| schema[key].as_i64();
    let length = |key: &str| schema[key].as_u64().and_then(|length| usize::try_from(length).ok());
    let mut tried: Vec<Tried> = Vec::new();
    match schema["type"].as_str() {
        Some("integer") => {
            let beyond = [(number_of("minimum"), -1), (number_of("maximum"), 1)];
            for (end, step) in beyond.into_iter().filter_map(|(end, step)| Some((end?, step))) {
                tried.push((end.to_string(), true));
                tried.push(((i128::from(end) + step).to_string(), false));
            }
            tried.extend(["1.5", "\"1\"", "null", "1e20"].map(|text| (text.to_owned(), false)));
        }
        Some("string") => {
            let text = |length: usize| format!("\"{}\"", "x".repeat(length));
            for (end, beyond) in [
                (length("minLength"), length("minLength").and_then(|least| least.checked_sub(1))),
                (length("maxLength"), length("maxLength").map(|most| most + 1)),
            ] {
                tried.extend(end.map(|end| (text(end), true)));
                tried.extend(beyond.map(|beyond| (text(beyond), false)));
            }
        }
        Some("array") => {
            let item = |nth: usize| match schema["items"]["type"].as_str() {
                Some("object") => with(&least(&schema["items"]), None),
                _ => format!("\"h7-{number}-{nth}\""),
            };
            let list = |length: usize| {
                format!("[{}]", (0..length).map(item).collect::<Vec<_>>().join(","))
            };
            for (end, step) in [(length("minItems"), -1), (length("maxItems"), 1)] {
                let Some(end) = end else { continue };
                tried.push((list(end), true));
                tried.extend(end.checked_add_signed(step).map(|beyond| (list(beyond), false)));
            }
        }
        Some("boolean") => {
            tried.push((schema["default"].to_string(), true));
            tried.extend(["1", "\"true\"", "null"].map(|text| (text.to_owned(), false)));
        }
        _ => {
            if let Some(most) = length("x-max-bytes") {
                let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
                tried.extend([(text(most), true), (text(most + 1), false)]);
            }
            // What it is taken for is not the same everywhere.
            if let Some(only) = schema["const"].as_bool() {
                let others = [(!only).to_string(), "1".to_owned(), "null".to_owned()];
                tried.extend(others.map(|text| (text, false)));
            }
        }
    }
    tried
}
