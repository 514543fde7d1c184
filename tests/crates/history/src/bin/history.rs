//! Prints a history as readable lines, in order of time.
//!
//! `history FILE` prints all records. With `--client N`, `--object N` and `--attempt N` it prints only the records that
//! match all given options.

use std::error::Error;
use std::io::{self, BufWriter, Write};
use std::{env, process};

use coordination_history::{Record, read};

const USAGE: &str = "usage: history FILE [--client N] [--object N] [--attempt N]";

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    match show(&arguments, io::stdout().lock()) {
        Ok(()) => {}
        // The reader of the output closed the pipe (`history FILE | head`), which is no error.
        Err(error) if is_closed(&*error) => {}
        Err(error) => {
            eprintln!("{error}");
            process::exit(1);
        }
    }
}

fn is_closed(error: &(dyn Error + 'static)) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn show(arguments: &[String], output: impl Write) -> Result<(), Box<dyn Error>> {
    let [file, filters @ ..] = arguments else { return Err(USAGE.into()) };
    let filters = filters.chunks(2).map(Filter::parse).collect::<Result<Vec<_>, _>>()?;
    let mut records = read(file)?;
    records.retain(|record| filters.iter().all(|filter| filter.fits(record)));
    records.sort_by_key(|record| record.at);
    let mut output = BufWriter::new(output);
    for record in &records {
        writeln!(output, "{record}")?;
    }
    Ok(output.flush()?)
}

struct Filter {
    field: fn(&Record) -> u64,
    is: u64,
}

impl Filter {
    fn parse(words: &[String]) -> Result<Self, Box<dyn Error>> {
        let [name, number] = words else { return Err(USAGE.into()) };
        let field = match name.as_str() {
            "--client" => |record: &Record| u64::from(record.client),
            "--object" => |record: &Record| u64::from(record.object),
            "--attempt" => |record: &Record| record.attempt,
            _ => return Err(USAGE.into()),
        };
        Ok(Self { field, is: number.parse()? })
    }

    fn fits(&self, record: &Record) -> bool {
        (self.field)(record) == self.is
    }
}
