//! The part of RESP2 that a strict client needs, and the pushes of RESP3. Commands are encoded;
//! replies are delimited and compared.
//!
//! A reply is kept as the bytes that arrived. Known replies are compared byte by byte; only
//! integers, bulk strings and messages of channels are parsed.

use std::io::{self, Read, Write};

use anyhow::{Context, Result, bail, ensure};

/// With less free space than this, an inbox makes room before it reads.
const MIN_READ_BYTES: usize = 1024;

/// Appends one command to `out`.
pub fn push_command(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "*{}\r\n", arguments.len());
    for argument in arguments {
        let _ = write!(out, "${}\r\n", argument.len());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

/// Encodes one command.
#[must_use]
pub fn command(arguments: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    push_command(&mut out, arguments);
    out
}

/// One complete reply, as it arrived.
#[derive(Clone, Copy)]
pub struct Frame<'a>(&'a [u8]);

impl<'a> Frame<'a> {
    /// Requires exactly these bytes.
    ///
    /// # Errors
    ///
    /// If the reply is different.
    pub fn expect(self, expected: &[u8]) -> Result<()> {
        ensure!(self.0 == expected, "expected the reply {}, got {self}", expected.escape_ascii());
        Ok(())
    }

    /// Whether the server answered `WAITING`: the result follows on the channel of `NOTIFY`.
    pub fn is_waiting(self) -> bool {
        self.0 == b"+WAITING\r\n"
    }

    /// Requires an integer.
    ///
    /// # Errors
    ///
    /// If the reply is anything else.
    pub fn integer(self) -> Result<i64> {
        self.0
            .strip_prefix(b":")
            .and_then(|rest| rest.strip_suffix(b"\r\n"))
            .and_then(parse_number)
            .with_context(|| format!("expected an integer reply, got {self}"))
    }

    /// Requires a bulk string.
    ///
    /// # Errors
    ///
    /// If the reply is anything else, including nil.
    pub fn bulk(self) -> Result<&'a [u8]> {
        let body = self.0.strip_prefix(b"$").and_then(|rest| {
            let line_end = find_line_end(rest)?;
            rest.get(line_end..)?.strip_suffix(b"\r\n")
        });
        body.with_context(|| format!("expected a bulk string, got {self}"))
    }

    /// Requires a message of an ordinary channel, and returns its text.
    ///
    /// # Errors
    ///
    /// If the reply is anything else.
    pub fn message(self) -> Result<&'a [u8]> {
        let elements = self.0.strip_prefix(b"*3\r\n").or_else(|| self.0.strip_prefix(b">3\r\n"));
        let text = elements.and_then(|elements| {
            let channel = elements.strip_prefix(b"$7\r\nmessage\r\n")?;
            let text = channel.get(frame_len(channel).ok()??..)?;
            Frame(text).bulk().ok()
        });
        text.with_context(|| format!("expected a message of a channel, got {self}"))
    }

    /// Whether it is a push of RESP3, which answers no command.
    #[must_use]
    pub fn is_push(self) -> bool {
        self.0.starts_with(b">")
    }

    /// Requires an array with `len` elements.
    ///
    /// # Errors
    ///
    /// If the reply is anything else.
    pub fn expect_array(self, len: usize) -> Result<()> {
        ensure!(self.0.starts_with(format!("*{len}\r\n").as_bytes()), "expected an array of {len}, got {self}");
        Ok(())
    }

    /// Requires an error with this code.
    ///
    /// # Errors
    ///
    /// If the reply is different.
    pub fn expect_error(self, code: &str) -> Result<()> {
        ensure!(self.0.starts_with(format!("-{code} ").as_bytes()), "expected the error {code}, got {self}");
        Ok(())
    }
}

impl std::fmt::Display for Frame<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = self.0.get(..200).unwrap_or(self.0);
        write!(formatter, "{}", shown.escape_ascii())
    }
}

/// Data that has arrived on a connection and is not consumed yet.
pub struct Inbox {
    bytes: Vec<u8>,
    consumed: usize,
    filled: usize,
}

impl Inbox {
    /// An inbox that reads up to `read_bytes` at once. It grows for longer replies.
    #[must_use]
    pub fn new(read_bytes: usize) -> Self {
        Self { bytes: vec![0; read_bytes], consumed: 0, filled: 0 }
    }

    /// Reads once from `source` and returns the number of bytes, 0 at the end of the stream.
    ///
    /// # Errors
    ///
    /// Those of the read.
    pub fn fill_from(&mut self, source: &mut impl Read) -> io::Result<usize> {
        if self.bytes.len() - self.filled < MIN_READ_BYTES {
            self.bytes.copy_within(self.consumed..self.filled, 0);
            self.filled -= self.consumed;
            self.consumed = 0;
            if self.bytes.len() - self.filled < MIN_READ_BYTES {
                self.bytes.resize(2 * self.bytes.len() + MIN_READ_BYTES, 0);
            }
        }
        let count = source.read(&mut self.bytes[self.filled..])?;
        self.filled += count;
        Ok(count)
    }

    /// The length of the next reply, if all of it has arrived.
    ///
    /// # Errors
    ///
    /// If the data is not RESP.
    pub fn next_len(&self) -> Result<Option<usize>> {
        frame_len(&self.bytes[self.consumed..self.filled])
    }

    /// Consumes the reply whose length [`Inbox::next_len`] returned.
    pub fn take(&mut self, len: usize) -> Frame<'_> {
        let start = self.consumed;
        self.consumed += len;
        let frame = start..self.consumed;
        if self.consumed == self.filled {
            (self.consumed, self.filled) = (0, 0);
        }
        Frame(&self.bytes[frame])
    }
}

/// The length of the reply at the beginning of `bytes`, or `None` if its end has not arrived yet.
fn frame_len(bytes: &[u8]) -> Result<Option<usize>> {
    let Some(line_end) = find_line_end(bytes) else {
        return Ok(None);
    };
    let header = &bytes[1..line_end - 2];
    match bytes[0] {
        b'+' | b'-' | b':' => Ok(Some(line_end)),
        b'$' => {
            let len = element_count(header)?.map_or(0, |body| body + 2);
            Ok((bytes.len() >= line_end + len).then_some(line_end + len))
        }
        b'*' | b'>' | b'%' => {
            let mut end = line_end;
            // HELLO is answered with a map, which has a key before each value.
            let frames = if bytes[0] == b'%' { 2 } else { 1 };
            for _ in 0..frames * element_count(header)?.unwrap_or(0) {
                match frame_len(&bytes[end..])? {
                    Some(len) => end += len,
                    None => return Ok(None),
                }
            }
            Ok(Some(end))
        }
        other => bail!("not a reply: it begins with '{}'", other.escape_ascii()),
    }
}

/// The number in the header of a bulk string or an array; `None` for nil.
fn element_count(header: &[u8]) -> Result<Option<usize>> {
    match parse_number(header) {
        Some(-1) => Ok(None),
        Some(count) if count >= 0 => Ok(Some(usize::try_from(count)?)),
        _ => bail!("not a length: {}", header.escape_ascii()),
    }
}

fn parse_number(digits: &[u8]) -> Option<i64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The end of the first line, after its line feed. A line has at least its type and CR LF.
fn find_line_end(bytes: &[u8]) -> Option<usize> {
    let line_feed = bytes.iter().position(|&byte| byte == b'\n')?;
    (line_feed >= 2 && bytes[line_feed - 1] == b'\r').then_some(line_feed + 1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn whole(bytes: &[u8]) -> bool {
        frame_len(bytes).unwrap() == Some(bytes.len())
    }

    #[test]
    fn a_reply_is_delimited_only_when_the_whole_of_it_is_there() {
        for reply in [
            &b"+OK\r\n"[..],
            b":-12\r\n",
            b"-ERR no\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"$5\r\na\r\nbc\r\n",
            b"$0\r\n\r\n",
            b"*0\r\n",
            b"*3\r\n:1\r\n$2\r\nab\r\n*1\r\n+x\r\n",
            b">2\r\n$1\r\na\r\n:1\r\n",
            b"%2\r\n+a\r\n:1\r\n+b\r\n*0\r\n",
        ] {
            assert!(whole(reply), "{}", reply.escape_ascii());
            for cut in 0..reply.len() {
                assert_eq!(frame_len(&reply[..cut]).unwrap(), None);
            }
            let followed = [reply, b"+next\r\n"].concat();
            assert_eq!(frame_len(&followed).unwrap(), Some(reply.len()));
        }
    }

    #[test]
    fn what_is_no_resp_is_refused() {
        assert!(frame_len(b"hello\r\n").is_err());
        assert!(frame_len(b"$x\r\n").is_err());
        assert!(frame_len(b"*-2\r\n").is_err());
    }

    #[test]
    fn replies_are_taken_apart_strictly() {
        assert_eq!(Frame(b":42\r\n").integer().unwrap(), 42);
        assert!(Frame(b"$2\r\n42\r\n").integer().is_err());
        assert_eq!(Frame(b"$2\r\n42\r\n").bulk().unwrap(), b"42");
        assert_eq!(Frame(b"$4\r\na\r\nb\r\n").bulk().unwrap(), b"a\r\nb");
        assert!(Frame(b"$-1\r\n").bulk().is_err());
        assert!(Frame(b"+OK\r\n").expect(b"+OK\r\n").is_ok());
        assert!(Frame(b"+OK\r\n").expect(b":1\r\n").is_err());
        assert!(Frame(b"*2\r\n:1\r\n:2\r\n").expect_array(2).is_ok());
        assert!(Frame(b"*20\r\n").expect_array(2).is_err());
        assert!(Frame(b"-WRONGTYPE no\r\n").expect_error("WRONGTYPE").is_ok());
        assert!(Frame(b"-WRONGTYPE no\r\n").expect_error("WRONG").is_err());
    }

    #[test]
    fn messages_of_channels_are_told_from_everything_else() {
        let message = b"*3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$4\r\ntext\r\n";
        let push = b">3\r\n$7\r\nmessage\r\n$2\r\nch\r\n$4\r\ntext\r\n";
        assert_eq!(Frame(message).message().unwrap(), b"text");
        assert_eq!(Frame(push).message().unwrap(), b"text");
        assert!(Frame(push).is_push() && !Frame(message).is_push());
        assert!(Frame(b"*3\r\n$9\r\nsubscribe\r\n$2\r\nch\r\n:1\r\n").message().is_err());
    }

    #[test]
    fn an_inbox_hands_out_replies_across_reads() {
        let mut inbox = Inbox::new(16);
        assert_eq!(inbox.fill_from(&mut &b":1\r\n$3\r\nab"[..]).unwrap(), 10);
        let len = inbox.next_len().unwrap().unwrap();
        assert_eq!(inbox.take(len).integer().unwrap(), 1);
        assert_eq!(inbox.next_len().unwrap(), None);
        assert_eq!(inbox.fill_from(&mut &b"c\r\n"[..]).unwrap(), 3);
        let len = inbox.next_len().unwrap().unwrap();
        assert_eq!(inbox.take(len).bulk().unwrap(), b"abc");
    }
}
