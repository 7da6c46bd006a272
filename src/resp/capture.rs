//! A short string kept in place: the part of a frame that identifies it. A longer string keeps its beginning and is
//! marked.

/// A string of up to `N` bytes (at most 255).
#[derive(Debug, Clone, Copy)]
pub(super) struct Captured<const N: usize> {
    bytes: [u8; N],
    len: u8,
    cut: bool,
}

impl<const N: usize> Captured<N> {
    pub(super) const EMPTY: Self = Self {
        bytes: [0; N],
        len: 0,
        cut: false,
    };

    pub(super) fn push(&mut self, more: &[u8]) {
        let len = usize::from(self.len);
        let fit = more.len().min(N - len);
        self.bytes[len..len + fit].copy_from_slice(&more[..fit]);
        self.len += fit as u8;
        self.cut |= fit < more.len();
    }

    /// Returns the string, unless it was too long.
    pub(super) fn whole(&self) -> Option<&[u8]> {
        (!self.cut).then(|| self.beginning())
    }

    /// Returns the string, or its first `N` bytes.
    pub(super) fn beginning(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub(super) fn make_upper_case(&mut self) {
        self.bytes[..usize::from(self.len)].make_ascii_uppercase();
    }
}
