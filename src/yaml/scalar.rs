//! What a plain scalar means: YAML 1.2's core schema, less what a configuration cannot use.
//!
//! `null`, `true` and `false` (each in three spellings), whole numbers (decimal, `0o17`, `0x1f`) and decimals.
//! `yes`, `on` and `1_000` are text, as in YAML 1.2. Infinities, not-a-number, and numbers too large to be held
//! are refused instead of being rounded to something nobody wrote. A scalar in quotes or a block is always
//! text.

use serde_json::{Number, Value};

/// The value of a plain scalar, or why it cannot be one.
pub(super) fn resolve(text: &str) -> Result<Value, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Value::Null),
        "true" | "True" | "TRUE" => return Ok(Value::Bool(true)),
        "false" | "False" | "FALSE" => return Ok(Value::Bool(false)),
        ".nan" | ".NaN" | ".NAN" => return Err("not-a-number is not a usable value".into()),
        _ => {}
    }
    let (negative, digits) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if matches!(digits, ".inf" | ".Inf" | ".INF") {
        return Err("infinity is not a usable value; to have no limit, leave the key out".into());
    }
    if let Some((radix, digits)) = whole(text, digits) {
        return integer(negative, digits, radix);
    }
    if is_decimal(digits) {
        return decimal(text);
    }
    Ok(Value::String(text.to_owned()))
}

/// The radix and digits of a whole number. Octal and hexadecimal take no sign.
fn whole<'text>(text: &'text str, unsigned: &'text str) -> Option<(u32, &'text str)> {
    let all = |digits: &str, radix| !digits.is_empty() && digits.chars().all(|digit: char| digit.is_digit(radix));
    if let Some(digits) = text.strip_prefix("0o").filter(|digits| all(digits, 8)) {
        return Some((8, digits));
    }
    if let Some(digits) = text.strip_prefix("0x").filter(|digits| all(digits, 16)) {
        return Some((16, digits));
    }
    all(unsigned, 10).then_some((10, unsigned))
}

fn integer(negative: bool, digits: &str, radix: u32) -> Result<Value, String> {
    let too_large = || format!("the number is too large; the largest is {}; if it is text, put it in quotes", u64::MAX);
    let magnitude = u64::from_str_radix(digits, radix).map_err(|_| too_large())?;
    if !negative {
        return Ok(Value::from(magnitude));
    }
    0i64.checked_sub_unsigned(magnitude).map(Value::from).ok_or_else(too_large)
}

/// `[0-9]* (. [0-9]*)? ([eE] [-+]? [0-9]+)?` with at least one digit before the exponent.
fn is_decimal(unsigned: &str) -> bool {
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (before, after) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent_fits = exponent.is_none_or(|exponent| {
        let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        !exponent.is_empty() && digits(exponent)
    });
    digits(before) && digits(after) && !(before.is_empty() && after.is_empty()) && exponent_fits
}

fn decimal(text: &str) -> Result<Value, String> {
    let number = text.parse().ok().and_then(Number::from_f64);
    number.map(Value::Number).ok_or_else(|| "the number is too large; if it is text, put it in quotes".into())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::resolve;

    #[test]
    fn scalars_mean_what_the_core_schema_says() {
        let cases = [
            ("", Value::Null),
            ("~", Value::Null),
            ("TRUE", json!(true)),
            ("no", json!("no")),
            ("0", json!(0)),
            ("-7", json!(-7)),
            ("+7", json!(7)),
            ("0x1f", json!(31)),
            ("0o17", json!(15)),
            ("-0x1f", json!("-0x1f")),
            ("18446744073709551615", json!(u64::MAX)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("1.5", json!(1.5)),
            (".5", json!(0.5)),
            ("1.", json!(1.0)),
            ("2e3", json!(2000.0)),
            ("-1.5E-1", json!(-0.15)),
            (".", json!(".")),
            ("-", json!("-")),
            ("+", json!("+")),
            ("e5", json!("e5")),
            ("1e", json!("1e")),
            ("1_000", json!("1_000")),
            ("20%", json!("20%")),
            ("10s", json!("10s")),
            ("é", json!("é")),
            ("1.2.3", json!("1.2.3")),
        ];
        for (text, value) in cases {
            assert_eq!(resolve(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_held_is_refused() {
        for text in
            [".nan", ".inf", "-.INF", "18446744073709551616", "-9223372036854775809", "1e999", "0xfffffffffffffffff"]
        {
            assert!(resolve(text).is_err(), "{text}");
        }
    }
}
