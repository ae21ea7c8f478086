//! The committed PTX belongs to the committed sources.
use cuda_builder::{Manifest, NvvmArch};
use std::path::Path;

#[test]
fn the_committed_ptx_is_made_from_these_sources() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ptx_dir = crate_dir.join("ptx");
    let manifest = Manifest::read(&ptx_dir).unwrap();
    let changed = manifest.changed_sources(crate_dir).unwrap();
    assert!(changed.is_empty(), "changed since the PTX was built: {changed:?}; run `cargo run -p cuda_builder -- gpu`");
    assert!(manifest.changed_ptx(&ptx_dir).unwrap().is_empty(), "the PTX was edited by hand");
}

#[test]
fn every_architecture_has_the_same_kernels() {
    let manifest = Manifest::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("ptx")).unwrap();
    let kernels =
        NvvmArch::ALL.map(|arch| manifest.ptx[&arch.target_cpu()].kernels.keys().cloned().collect::<Vec<_>>());
    assert_eq!(kernels[0], kernels[1]);
    assert!(!kernels[0].is_empty());
}
