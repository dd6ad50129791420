use serde_json::json;

use super::{read, refused, tiny, with};
use crate::config::{Dropout, Family, TransformerConfig};

#[test]
fn blocks_without_an_mlp_have_a_type_of_their_own() {
    for family in Family::ALL {
        let model_type = family.model_type();
        let own = format!("tenterhook_{model_type}");
        let bare = json!({"model_type": own, "tenterhook": {"attention_only": true}});
        let config = read(with(tiny(model_type), bare.clone())).unwrap();
        assert_eq!((config.family, config.mlp_width), (family, 0));
        config.validate().unwrap();
        let written = config.to_hf();
        assert_eq!((&written["model_type"], &written["tenterhook"]), (&json!(own), &bare["tenterhook"]));
        assert_eq!(read(written).unwrap(), config);
        // Under the family's own name, transformers would add MLPs.
        let plain = json!({"tenterhook": {"attention_only": true}});
        refused(with(tiny(model_type), plain), &["attention_only", &format!("`{own}`")]);
        let said_nowhere =
            with(tiny(model_type), json!({"model_type": own, "intermediate_size": 0, "n_inner": 0}));
        refused(said_nowhere, &["must be a whole number"]);
    }
    refused(json!({"model_type": "tenterhook_mlp"}), &["Mlp::load"]);
    refused(json!({"model_type": "tenterhook_bert"}), &["`tenterhook_bert` is not supported"]);
}

#[test]
fn rates_that_a_family_cannot_say_stand_under_our_key() {
    let all = Dropout { embedding: 0.1, attention: 0.1, residual: 0.1 };
    for family in Family::ALL {
        let plain = read(tiny(family.model_type())).unwrap();
        let plain = TransformerConfig { dropout: Dropout::default(), ..plain };
        assert!(plain.to_hf().get("tenterhook").is_none(), "{family:?}");
        let config = TransformerConfig { dropout: all, ..plain.clone() };
        config.validate().unwrap();
        let written = config.to_hf();
        let sayable = matches!(family, Family::Gpt2 | Family::NeoX);
        assert_eq!(written.get("tenterhook").is_none(), sayable, "{family:?}");
        assert_eq!(written["model_type"], family.model_type());
        assert_eq!(read(written.clone()).unwrap(), config);
        let bad = Dropout { residual: 1.0, ..Default::default() };
        let problem = TransformerConfig { dropout: bad, ..plain.clone() }.validate().unwrap_err().to_string();
        assert!(problem.contains("a rate of at least 0 and below 1"), "{problem}");

        // A file that was read keeps everything else.
        let mut json = with(tiny(family.model_type()), json!({"torch_dtype": "bfloat16", "custom": [1]}));
        for config in [&config, &plain] {
            config.write_dropout(&mut json);
            assert_eq!(read(json.clone()).unwrap(), *config, "{family:?}");
            assert_eq!(json.get("tenterhook"), config.to_hf().get("tenterhook"));
            assert_eq!((&json["custom"], &json["hidden_size"]), (&json!([1]), &json!(32)));
        }
    }
}

#[test]
fn unknown_words_under_our_key_are_refused() {
    let extra = |extra| with(tiny("llama"), json!({"tenterhook": extra}));
    refused(
        extra(json!({"attention_onyl": true})),
        &["`tenterhook.attention_onyl` is not known", "attention_only"],
    );
    refused(extra(json!({"dropout": {"mlp": 0.1}})), &["`tenterhook.dropout.mlp` is not known"]);
    refused(extra(json!({"dropout": 0.1})), &["`tenterhook.dropout` must be an object"]);
    refused(extra(json!({"dropout": {"residual": 2}})), &["`tenterhook.dropout.residual` must be a rate"]);
    refused(extra(json!({"attention_only": 1})), &["`tenterhook.attention_only` must be true or false"]);
    refused(extra(json!(true)), &["`tenterhook` must be an object"]);
    read(extra(json!({}))).unwrap();
    read(extra(json!(null))).unwrap();
}
