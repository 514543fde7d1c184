//! What is asked of files.

/// The identity of a file, opened or not.
///
/// All files of a store are on one file system, so the inode number alone tells them apart.
pub(in crate::backend::file) type Inode = u64;

/// What is known of a file that is not open.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend::file) struct State {
    pub(in crate::backend::file) inode: Inode,
    pub(in crate::backend::file) size: u64,
    /// When the file was last read and written, in seconds of UNIX time.
    pub(in crate::backend::file) accessed: i64,
    pub(in crate::backend::file) modified: i64,
    /// When file or inode were last changed, in seconds and nanoseconds.
    pub(in crate::backend::file) changed: (i64, u32),
}
