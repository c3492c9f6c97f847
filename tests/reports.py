"""Parse a page written by ``qa-arch report``."""

import base64
import json
import re
import zlib


def page_parts(path) -> tuple[dict, dict[str, bytes]]:
    """The page's data as a browser reads them: the plain value, and every packed element unpacked."""
    page = path.read_text(encoding="utf-8")
    (value,) = re.findall(r'<script type="application/json" id="qa-data">(.*?)</script>', page, re.DOTALL)
    packed = dict(re.findall(r'<script type="text/plain" id="pack-([\w-]+)">(.*?)</script>', page))
    return json.loads(value), {name: zlib.decompress(base64.b64decode(text)) for name, text in packed.items()}
