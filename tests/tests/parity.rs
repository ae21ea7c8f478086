//! Agreement with Hugging Face transformers on small checkpoints in every published layout.

use coppice::engine::{Session, Speculation, logits};
use coppice_tests::model::{
    BACKENDS, FIXTURES, Tensors, backend, fixture, fixture_model, options, relative_error, request,
};

/// Norm of the difference over norm; the weights expand exactly, so quantised checkpoints have no other bound.
const TOLERANCE: f64 = 2e-5;

#[test]
fn logits_and_every_hidden_state_are_those_of_transformers() {
    let mut failures = Vec::new();
    for name in FIXTURES {
        let model = fixture_model(name);
        let expected = Tensors::open(&fixture(name).join("expected.safetensors"));
        let ids = expected.ids("input_ids");
        let layers: Vec<usize> = (0..model.config.num_hidden_layers).collect();
        for backend_name in BACKENDS {
            for chunk in [ids.len(), 7] {
                let output = logits(backend(backend_name).as_mut(), &model, &ids, &layers, chunk).unwrap();
                let mut compare = |what: String, values: &[f32]| {
                    let error = relative_error(values, &expected.f32(&what));
                    println!("{name} {backend_name} chunk {chunk} {what}: {error:.1e}");
                    // Written so that a NaN fails.
                    if !matches!(error.partial_cmp(&TOLERANCE), Some(std::cmp::Ordering::Less)) {
                        failures.push(format!("{name} {backend_name} chunk {chunk} {what}: relative error {error:e}"));
                    }
                };
                compare("logits".into(), &output.logits);
                for (layer, values) in &output.hidden {
                    compare(format!("hidden.{layer}"), values);
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn greedy_ids_are_those_of_transformers() {
    let mut failures = Vec::new();
    for name in FIXTURES {
        let model = fixture_model(name);
        let expected = Tensors::open(&fixture(name).join("expected.safetensors"));
        let (prompt, greedy) = (expected.ids("greedy_prompt"), expected.ids("greedy"));
        assert_eq!(greedy.len(), 24, "{name}");
        for backend_name in BACKENDS {
            for speculation in [Speculation::None, Speculation::Ngram { budget: 8 }] {
                let mut session = Session::new(backend(backend_name), &model, None, options(), |_, _| {}).unwrap();
                let tokens = session.generate(&request(&prompt, 24, speculation), &mut ()).unwrap().tokens;
                if tokens != greedy {
                    failures.push(format!("{name} {backend_name} {speculation:?}: {tokens:?}, expected {greedy:?}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
