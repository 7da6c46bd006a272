//! A short string kept in place: what of a frame is needed to know it. Longer ones keep their
//! beginning and are marked.

/// Up to `N` bytes (at most 255).
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

    /// The string, where it was not too long.
    pub(super) fn whole(&self) -> Option<&[u8]> {
        (!self.cut).then(|| self.beginning())
    }

    /// The string, or the first `N` bytes of it.
    pub(super) fn beginning(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    pub(super) fn make_upper_case(&mut self) {
        self.bytes[..usize::from(self.len)].make_ascii_uppercase();
    }
}
