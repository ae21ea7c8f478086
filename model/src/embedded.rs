//! The files of `tiny/`, in the program itself when the feature `embedded-model` is on. Reading files on disk lives in
//! `source`.

/// Puts an embedded file at an address that every element type is aligned to, so that tensors need no copy.
#[cfg(feature = "embedded-model")]
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

/// One embedded file: its name in the model folder and its bytes.
pub(crate) type File = (&'static str, &'static [u8]);

#[cfg(feature = "embedded-model")]
macro_rules! file {
    ($folder:literal, $name:literal) => {{
        static BYTES: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!("../tiny/", $folder, "/", $name)));
        ($name, &BYTES.0)
    }};
}

/// The default target; `None` when it was left out of the build.
pub(crate) fn target() -> Option<&'static [File]> {
    #[cfg(feature = "embedded-model")]
    {
        static FILES: &[File] = &[
            file!("target", "config.json"),
            file!("target", "generation_config.json"),
            file!("target", "model.safetensors"),
            file!("target", "tokenizer.json"),
            file!("target", "tokenizer_config.json"),
        ];
        Some(FILES)
    }
    #[cfg(not(feature = "embedded-model"))]
    None
}

/// The default target's drafter; `None` when it was left out of the build.
pub(crate) fn draft() -> Option<&'static [File]> {
    #[cfg(feature = "embedded-model")]
    {
        static FILES: &[File] = &[file!("draft", "config.json"), file!("draft", "model.safetensors")];
        Some(FILES)
    }
    #[cfg(not(feature = "embedded-model"))]
    None
}
