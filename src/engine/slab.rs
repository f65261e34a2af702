//! A store with stable small indices that reuses its holes.

/// Values by `u32` index. All operations are O(1).
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Option<T>>,
    holes: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: Vec::new(),
            holes: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(at) = self.holes.pop() {
            self.entries[at as usize] = Some(value);
            return at;
        }
        self.entries.push(Some(value));
        u32::try_from(self.entries.len() - 1).expect("fewer requests than 2^32 fit in memory")
    }

    pub(crate) fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.entries.get_mut(at as usize)?.take();
        if value.is_some() {
            self.holes.push(at);
        }
        value
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.entries.get(at as usize)?.as_ref()
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    /// # Panics
    /// When nothing is stored at `at`.
    fn index(&self, at: u32) -> &T {
        self.entries[at as usize].as_ref().expect("the index came from insert")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        self.entries[at as usize].as_mut().expect("the index came from insert")
    }
}
