//! Amounts of service in JSON: decimals with up to six places, written from integers, so that what adds up in the
//! books adds up in what is shown.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::units::VirtualTokens;

/// An amount as an exact decimal.
fn decimal(amount: VirtualTokens) -> String {
    let micros = amount.as_micros();
    let (sign, size) = (if micros < 0 { "-" } else { "" }, micros.unsigned_abs());
    let text = format!("{sign}{}.{:06}", size / 1_000_000, size % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// An amount.
pub(super) fn exact<S: Serializer>(amount: &VirtualTokens, serializer: S) -> Result<S::Ok, S::Error> {
    RawValue::from_string(decimal(*amount)).map_err(serde::ser::Error::custom)?.serialize(serializer)
}

/// An amount, or null.
pub(super) fn exact_or_null<S: Serializer>(amount: &Option<VirtualTokens>, serializer: S) -> Result<S::Ok, S::Error> {
    match amount {
        Some(amount) => exact(amount, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::decimal;
    use crate::units::VirtualTokens;

    #[test]
    fn amounts_are_written_exactly() {
        let written = |micros: i128| decimal(VirtualTokens::from_micros(micros));
        assert_eq!(written(0), "0");
        assert_eq!(written(100_000_000), "100");
        assert_eq!(written(1), "0.000001");
        assert_eq!(written(-1_500_000), "-1.5");
        assert_eq!(written(123_456_789_012_345_678_901), "123456789012345.678901");
    }
}
