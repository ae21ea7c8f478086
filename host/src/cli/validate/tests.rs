//! Which combinations of flags are understood, and how.

use clap::Parser;
use coppice_model::config::{DraftConfig, GenerationDefaults};

use super::request::SpecArgs;
use super::*;
use crate::cli::args::{Cli, Flags, Spec, TreeBudget};
use crate::engine::{Drafts, Speculation};
use crate::sampling::Sampling;

fn generate(args: &[&str], stdin_is_terminal: bool) -> Result<GenerateArgs> {
    match Cli::try_parse_from([&["coppice", "generate"], args].concat()).unwrap().command {
        Flags::Generate(flags) => flags.validate(stdin_is_terminal),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_flags_are_consistent() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}

#[test]
fn c7_a_prompt_comes_from_standard_input_unless_someone_sits_there() {
    let source = |args: &[&str], terminal| generate(args, terminal).map(|args| args.request.prompt);
    let text = |text: &str| PromptSource::Text(text.to_owned());
    assert_eq!(source(&["x"], true).unwrap(), text("x"));
    assert_eq!(source(&["--", "-x"], true).unwrap(), text("-x"));
    assert_eq!(source(&[""], true).unwrap(), text(""));
    assert_eq!(source(&["-"], true).unwrap(), PromptSource::Read(Input::Stdin));
    assert_eq!(source(&[], false).unwrap(), PromptSource::Read(Input::Stdin));
    assert_eq!(source(&["--tokens", "t"], false).unwrap(), PromptSource::Tokens(Input::File("t".into())));
    assert_eq!(source(&["--prompt-file", "f"], true).unwrap(), PromptSource::Read(Input::File("f".into())));
    assert!(matches!(source(&[], true), Err(Error::Usage(message)) if message.starts_with("there is no prompt")));
}

#[test]
fn modes_and_drafters_default_to_what_there_is() {
    let (embedded, folder) = (Some(Source::EmbeddedDraft), Some(Source::Directory("d".into())));
    let ddtree = |budget| Speculation::Ddtree { budget };
    let ngram = |budget| Speculation::Ngram { budget };
    let auto = Speculation::Auto(Drafts::Any);
    let cases: [(&[&str], Option<Source>, Speculation); 14] = [
        (&[], embedded.clone(), auto),
        (&["--spec", "auto", "--tree-budget", "auto"], embedded.clone(), auto),
        (&["--spec", "ddtree"], embedded.clone(), Speculation::Auto(Drafts::Ddtree)),
        (&["--spec", "ngram", "--tree-budget", "auto"], None, Speculation::Auto(Drafts::Ngram)),
        (&["--tree-budget", "0"], embedded.clone(), ddtree(0)),
        (&["--draft", "d"], folder.clone(), auto),
        (&["--model", "m"], None, auto),
        (&["--model", "m", "--tree-budget", "3"], None, ngram(3)),
        (&["--model", "m", "--draft", "d", "--tree-budget", "3"], folder.clone(), ddtree(3)),
        (&["--model", "m", "--draft", "d"], folder.clone(), auto),
        (&["--model", "m", "--draft", "d", "--spec", "ngram"], None, Speculation::Auto(Drafts::Ngram)),
        (&["--spec", "none", "--tree-budget", "9"], None, Speculation::None),
        (&["--spec", "dflash"], embedded.clone(), Speculation::Dflash { budget: 0 }),
        (&["--spec", "ddtree", "--tree-budget", "64"], embedded, ddtree(64)),
    ];
    let mut failed = Vec::new();
    for (args, draft, speculation) in cases {
        let got = generate(&[args, &["x"]].concat(), true).unwrap().request;
        if (&got.draft, got.spec.resolve(None)) != (&draft, speculation) {
            failed.push(format!("{args:?}: {:?}, {:?}", got.draft, got.spec.resolve(None)));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_flag_that_changes_nothing_is_named_with_the_reason() {
    let cases: [(&[&str], &[&str]); 8] = [
        (&["--spec", "none"], &[]),
        (&["--spec", "none", "--draft", "d"], &["--draft changes nothing: nothing is drafted (--spec none)"]),
        (
            &["--spec", "none", "--tree-budget", "9"],
            &["--tree-budget changes nothing: nothing is drafted (--spec none)"],
        ),
        (
            &["--model", "m", "--draft-yarn-amplitude", "1"],
            &["--draft-yarn-amplitude changes nothing: there is no drafter (--draft)"],
        ),
        (
            &["--spec", "ngram", "--draft", "d", "--draft-yarn-amplitude", "1", "--tree-budget", "3"],
            &[
                "--draft changes nothing: the text drafts itself (--spec ngram)",
                "--draft-yarn-amplitude changes nothing: the text drafts itself (--spec ngram)",
            ],
        ),
        (&["--model", "m", "--tree-budget", "3"], &[]),
        (&["--draft", "d", "--draft-yarn-amplitude", "1"], &[]),
        (&["--spec", "dflash", "--draft-yarn-amplitude", "1", "--tree-budget", "3"], &[]),
    ];
    let mut failed = Vec::new();
    for (args, idle) in cases {
        let got = generate(&[args, &["x"]].concat(), true).unwrap().request.idle;
        if got != idle {
            failed.push(format!("{args:?}: {got:?}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_dash_is_a_stream_wherever_a_file_may_be_named() {
    let parsed = |args: &[&str]| Cli::try_parse_from([&["coppice"], args].concat()).unwrap().command;
    let prompt = |args: &[&str]| generate(args, true).unwrap().request.prompt;
    assert_eq!(prompt(&["--tokens", "-"]), PromptSource::Tokens(Input::Stdin));
    assert_eq!(prompt(&["--prompt-file", "-"]), PromptSource::Read(Input::Stdin));
    let printed = generate(&["x", "-O", "-"], true).unwrap();
    assert_eq!((printed.format, printed.output), (Format::Json, None));
    assert!(matches!(generate(&["x", "-O", "-", "--stream"], true), Err(Error::Usage(_))));
    let Flags::Inspect(flags) = parsed(&["inspect", "-O", "-"]) else { panic!() };
    assert_eq!(flags.validate().report, ReportArgs { json: true, output: None });
    let Flags::Kernels(flags) = parsed(&["kernels", "-O", "-"]) else { panic!() };
    assert_eq!(flags.validate().report, ReportArgs { json: true, output: None });
    let logits = || match parsed(&["logits", "--tokens", "-", "--out", "-"]) {
        Flags::Logits(flags) => flags,
        other => panic!("{other:?}"),
    };
    let args = logits().validate(false).unwrap();
    assert_eq!((args.tokens, args.out), (Input::Stdin, Output::Stdout));
    assert!(matches!(logits().validate(true), Err(Error::Usage(message)) if message.contains("terminal")));
}

#[test]
fn a_tree_is_drafted_unless_the_flags_say_otherwise() {
    let tree = |args: &[&str]| match Cli::try_parse_from([&["coppice", "tree", "x"], args].concat()).unwrap().command {
        Flags::Tree(flags) => flags.validate(true),
        other => panic!("{other:?}"),
    };
    let mode = |args: &[&str]| tree(args).map(|args| args.request.spec.mode);
    assert_eq!(mode(&[]).unwrap(), Spec::Ddtree);
    assert_eq!(mode(&["--model", "m"]).unwrap(), Spec::Ngram);
    assert_eq!(mode(&["--spec", "dflash"]).unwrap(), Spec::Dflash);
    for may_draft_nothing in ["none", "auto"] {
        let refused = mode(&["--spec", may_draft_nothing]);
        assert!(matches!(refused, Err(Error::Usage(message)) if message.contains("no tree to draw")));
    }
    let budget = |args: &[&str]| tree(args).unwrap().request.spec.budget;
    assert_eq!(budget(&[]), Some(TreeBudget::Nodes(16)));
    assert_eq!(budget(&["--tree-budget", "3"]), Some(TreeBudget::Nodes(3)));
    let written = |args: &[&str]| tree(args).map(|args| (args.drawing, args.output)).unwrap();
    assert_eq!(written(&["-O", "f"]), (Drawing::Text, Some("f".into())));
    assert_eq!(written(&["-O", "-"]), (Drawing::Json, None));
    assert_eq!(written(&["-O", "-", "--dot"]), (Drawing::Dot, None));
    assert_eq!(written(&["-O", "f", "--dot"]), (Drawing::Dot, Some("f".into())));
}

#[test]
fn a_chain_is_no_longer_than_the_drafters_block() {
    let spec = |budget| SpecArgs { mode: Spec::Dflash, budget };
    let drafter =
        DraftConfig::load(&Source::Directory(concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tiny/draft").into()));
    let drafter = drafter.unwrap();
    let nodes = |nodes| Some(TreeBudget::Nodes(nodes));
    for (given, budget) in [(None, 7), (Some(TreeBudget::Auto), 7), (nodes(3), 3), (nodes(100), 7)] {
        assert_eq!(spec(given).resolve(Some(&drafter)), Speculation::Dflash { budget });
    }
}

#[test]
fn sampling_flags_go_over_the_models_defaults() {
    let defaults = GenerationDefaults { temperature: 0.6, top_k: 50, top_p: 0.9, min_p: 0.0 };
    let sampling = |args: &[&str]| generate(&[args, &["x"]].concat(), true).unwrap().request.sampling.over(&defaults);
    let base = Sampling { temperature: 0.6, top_k: 50, top_p: 0.9, min_p: 0.0, seed: 0 };
    assert_eq!(sampling(&[]).unwrap(), base);
    assert_eq!(sampling(&["--temp", "0", "--seed", "4"]).unwrap(), Sampling { temperature: 0.0, seed: 4, ..base });
    assert_eq!(sampling(&["--temperature", "1.5", "--top-k", "0"]).unwrap().top_k, 0);
    let unheard_of = GenerationDefaults { top_p: 2.0, ..defaults };
    let refused = generate(&["x"], true).unwrap().request.sampling.over(&unheard_of);
    assert!(matches!(refused, Err(Error::Usage(message)) if message.contains("--top-p is 2")));
}
