"""How Django's own columns and fields show times: to the second, and in the zone that they are in."""

DATETIME_FORMAT = "Y-m-d H:i:s e"
DATE_FORMAT = "Y-m-d"
