"""Patterns of formats that the library matches too loosely or too strictly.

llguidance 1.9 allows `2023-02-29` and a leap second at any time of day. It doesn't allow IPv6
addresses that end like an IPv4 address, or quoted names in e-mail addresses.
"""

from __future__ import annotations

from typing import Final

# RFC 3339. A leap year is divisible by 4, and by 400 if it is divisible by 100.
LEAP_YEAR: Final = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
DATE: Final = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{LEAP_YEAR}-02-29)"
)
FRACTION: Final = r"(?:\.[0-9]+)?"
TIME: Final = (
    f"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{FRACTION}"
    "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
# A leap second is the last second of June or December in UTC (section 5.7). With other offsets,
# this would be a list of all minutes of the day, so only `Z` is allowed.
LEAP_SECOND: Final = f"23:59:60{FRACTION}[zZ]"

# RFC 4291, in the grammar of RFC 3986
BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
IPV4: Final = rf"(?:{BYTE}\.){{3}}{BYTE}"
GROUP: Final = "[0-9a-fA-F]{1,4}"
LAST_GROUPS: Final = f"(?:{GROUP}:{GROUP}|{IPV4})"


def _ipv6() -> str:
    forms = [f"(?:{GROUP}:){{6}}{LAST_GROUPS}"]
    for before in range(8):  # at most this many groups before the double colon
        first = f"(?:(?:{GROUP}:){{0,{before - 1}}}{GROUP})?" if before else ""
        last = f"(?:{GROUP}:){{{5 - before}}}{LAST_GROUPS}" if before < 6 else GROUP * (before == 6)
        forms.append(f"{first}::{last}")
    return f"(?:{'|'.join(forms)})"


IPV6: Final = _ipv6()
# RFC 5321, section 4.1.2
ATOM: Final = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
QUOTED: Final = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
LABEL: Final = "[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
EMAIL: Final = (
    rf"(?:{ATOM}(?:\.{ATOM})*|{QUOTED})@"
    rf"(?:{LABEL}(?:\.{LABEL})*|\[(?:{IPV4}|IPv6:{IPV6})\])"
)

FORMATS: Final = {
    "date": f"^{DATE}$",
    "time": f"^(?:{TIME}|{LEAP_SECOND})$",
    "date-time": f"^(?:{DATE}[tT]{TIME}|[0-9]{{4}}-(?:06-30|12-31)[tT]{LEAP_SECOND})$",
    "ipv6": f"^{IPV6}$",
    "email": f"^{EMAIL}$",
}
