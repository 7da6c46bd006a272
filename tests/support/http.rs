//! A client of HTTP, as small as it can be: one request, one answer, byte by byte as they are.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
};

use super::SOON;

/// A connection to an HTTP server.
pub(crate) struct Http(BufReader<TcpStream>);

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    /// A header; the empty text where there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        let header = self.headers.iter().find(|(its, _)| its == name);
        header.map_or("", |(_, value)| value)
    }
}

impl Http {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it takes connections");
        stream.set_read_timeout(Some(SOON)).expect("a time");
        Self(BufReader::new(stream))
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        self.0.get_ref()
    }

    pub(crate) fn send(&mut self, bytes: &str) {
        let written = self.0.get_mut().write_all(bytes.as_bytes());
        written.expect("it takes a request");
    }

    /// Asks, and reads the whole answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, method: &str, path: &str) -> Answer {
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        ));
        self.answer(method != "HEAD")
    }

    #[track_caller]
    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path)
    }

    /// Reads an answer whose length is told.
    #[track_caller]
    pub(crate) fn answer(&mut self, has_body: bool) -> Answer {
        let mut answer = self.head();
        if has_body {
            let length = answer.header("content-length").parse();
            let mut body = vec![0; length.expect("a length")];
            self.0.read_exact(&mut body).expect("a body");
            answer.body = String::from_utf8(body).expect("UTF-8");
        }
        answer
    }

    /// Reads an answer up to its body.
    #[track_caller]
    pub(crate) fn head(&mut self) -> Answer {
        let first = self.line();
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(": ") else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        Answer {
            status: status.unwrap_or_else(|| panic!("no status: {first:?}")),
            headers,
            body: String::new(),
        }
    }

    /// The next line, without its end; the empty one at the end of the connection.
    #[track_caller]
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line.truncate(line.trim_end_matches(['\r', '\n']).len());
        line
    }

    /// Whatever still comes, up to the end of the connection, which is to come.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => {}
            // Cut off: that is an end, too.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("no end: {error}"),
        }
        String::from_utf8_lossy(&rest).into_owned()
    }
}
