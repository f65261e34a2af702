//! Number formats of what is computed, stored and sent, by the names that measurements have.

use super::AicError;

/// A number format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Format {
    /// Its name in measurements and operations.
    pub(super) name: &'static str,
    /// Bytes of one number, scales included.
    pub(super) bytes: f64,
    /// Its name among the settings of a plan, which tell fewer apart; `None`: it has none there.
    pub(super) setting: Option<&'static str>,
}

const fn format(name: &'static str, bytes: f64, setting: Option<&'static str>) -> Format {
    Format { name, bytes, setting }
}

/// As stored where nothing says otherwise.
pub(super) const BFLOAT16: Format = format("bfloat16", 2.0, Some("bfloat16"));
/// One byte without scales of its own, in every field.
pub(super) const FP8: Format = format("fp8", 1.0, Some("fp8"));
/// What is sent where nothing says otherwise.
const HALF: Format = format("half", 2.0, Some("float16"));
/// Four bits a number and a byte for each sixteen.
const NVFP4_BYTES: f64 = 9.0 / 16.0;

/// What a number format is for. The tables' source: `aiconfigurator-core` 0.12.0 and `aisimulate-core` 0.13.0; `float16`
/// attention is left out, which the former names but neither evaluates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Gemm,
    Moe,
    Fmha,
    KvCache,
    Comm,
}

const GEMM: [Format; 11] = [
    BFLOAT16,
    format("int8_wo", 1.0, Some("int8")),
    format("int4_wo", 0.5, Some("int4")),
    FP8,
    format("fp8_static", 1.0, Some("fp8_static")),
    format("sq", 1.0, Some("int8")),
    format("fp8_block", 1.0, Some("fp8_block")),
    format("fp8_ootb", 1.0, Some("fp8")),
    format("nvfp4", NVFP4_BYTES, Some("nvfp4")),
    format("nvfp4_wo", NVFP4_BYTES, None),
    format("w4a16_nvfp4", NVFP4_BYTES, Some("w4a16_nvfp4")),
];
const MOE: [Format; 12] = [
    BFLOAT16,
    FP8,
    format("int4_wo", 0.5, Some("int4")),
    format("fp8_block", 1.0, Some("fp8_block")),
    format("w4afp8", 0.5, Some("w4afp8")),
    format("nvfp4", NVFP4_BYTES, Some("nvfp4")),
    format("nvfp4_wo", NVFP4_BYTES, None),
    format("w4a16_mxfp4", 0.5, Some("w4a16_mxfp4")),
    format("w4a8_mxfp4_mxfp8", 0.5, Some("w4a8_mxfp4_mxfp8")),
    format("w4a8_mxfp4_mxfp8_trtllm", 0.5, Some("w4a8_mxfp4_mxfp8_trtllm")),
    format("w4a16_mxfp4_cutlass", 0.5, Some("w4a16_mxfp4_cutlass")),
    format("w4a16_nvfp4", NVFP4_BYTES, Some("w4a16_nvfp4")),
];
const FMHA: [Format; 3] = [BFLOAT16, FP8, format("fp8_block", 1.0, Some("fp8_block"))];
const KV_CACHE: [Format; 3] = [BFLOAT16, format("int8", 1.0, Some("int8")), FP8];
const COMM: [Format; 3] = [HALF, format("int8", 1.0, Some("int8")), FP8];

impl Field {
    /// Its name in messages of the original.
    fn name(self) -> &'static str {
        match self {
            Self::Gemm => "gemm",
            Self::Moe => "moe",
            Self::Fmha => "fmha",
            Self::KvCache => "kvcache",
            Self::Comm => "comm",
        }
    }

    fn formats(self) -> &'static [Format] {
        match self {
            Self::Gemm => &GEMM,
            Self::Moe => &MOE,
            Self::Fmha => &FMHA,
            Self::KvCache => &KV_CACHE,
            Self::Comm => &COMM,
        }
    }

    /// The format of this name.
    pub(super) fn named(self, name: &str) -> Option<Format> {
        self.formats().iter().find(|format| format.name == name).copied()
    }

    /// What the user wrote; `None`: the model's own.
    ///
    /// # Errors
    /// [`AicError::Dtype`] lists what there is.
    pub(super) fn chosen(self, given: Option<&str>) -> Result<Option<Format>, AicError> {
        let Some(value) = given else { return Ok(None) };
        let trimmed = value.trim();
        if trimmed.is_empty() || ["auto", "none", "null"].contains(&trimmed.to_lowercase().as_str()) {
            return Ok(None);
        }
        let name = if trimmed == "int4" { "int4_wo" } else { trimmed };
        let found = self.named(name).ok_or_else(|| {
            let names: Vec<&str> = self.formats().iter().map(|format| format.name).collect();
            AicError::Dtype {
                field: self.name(),
                value: value.to_owned(),
                normalized: name.to_owned(),
                supported: names.join(", "),
            }
        });
        found.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_for_the_models_own_format_is_no_choice() {
        for word in ["", "  ", "auto", " Auto ", "none", "NULL"] {
            assert_eq!(Field::Gemm.chosen(Some(word)).unwrap(), None, "{word:?}");
        }
        assert_eq!(Field::Gemm.chosen(None).unwrap(), None);
        assert_eq!(Field::Gemm.chosen(Some(" fp8 ")).unwrap().unwrap().name, "fp8");
        assert_eq!(Field::Moe.chosen(Some("int4")).unwrap().unwrap().name, "int4_wo");
    }

    #[test]
    fn an_unknown_format_is_refused_with_those_there_are() {
        let error = |field: Field, value: &str| field.chosen(Some(value)).unwrap_err().to_string();
        assert_eq!(
            error(Field::KvCache, "int4"),
            r#"unsupported AIC kvcache quant mode "int4" (normalized to "int4_wo"); supported values: bfloat16, int8, fp8"#
        );
        assert!(error(Field::Gemm, "FP8").contains("supported values: bfloat16, int8_wo, int4_wo, fp8, fp8_static"));
        assert!(error(Field::Fmha, "float16").contains("fmha"));
        assert!(error(Field::Comm, "x").ends_with("half, int8, fp8"));
        assert!(error(Field::Moe, "int8_wo").contains("w4a16_nvfp4"));
    }
}
