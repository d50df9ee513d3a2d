"""The page of all heads: its content, and the page itself in a browser."""

import base64
import itertools
import json
import re

import jax
import numpy as np
import pytest

import chromium
from attendax.cli import main
from attendax.encoders import attention_rows, layer_attention
from attendax.figures import attention_page
from random_encoders import IDS, random_params
from test_encoder_options import CONFIGS


def random_weights(rng, L=2, N=3, T=5):
    weights = rng.random((L, N, T, T)) ** 3
    return weights / weights.sum(axis=-1, keepdims=True)


def content(page):
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    dtypes = {"small": np.uint8, "keys": "<u2", "weights": "<u2"}
    return data | {name: np.frombuffer(base64.b64decode(data[name]), dtype) for name, dtype in dtypes.items()}


class TestContent:
    def test_every_pair_of_a_short_text(self, rng):
        weights = random_weights(rng)
        data = content(attention_page(weights, list("abcde"), title="a <b>"))
        found = np.zeros(weights.shape)
        keys, values = (data[name].reshape(2, 3, 5, 5) for name in ("keys", "weights"))
        np.put_along_axis(found, keys.astype(int), values / 65535, axis=-1)
        np.testing.assert_allclose(found, weights, atol=1e-5)
        np.testing.assert_array_equal(data["small"].reshape(weights.shape), np.round(255 * np.sqrt(weights)))

    def test_a_long_text_is_asked_for_in_blocks(self, rng):
        """Cells have the largest weight of theirs; of each query the keys with most weight are there."""
        T, asked = 200, []
        weights = random_weights(rng, 1, 2, T)

        def rows(layer, start, stop):
            asked.append(stop - start)
            return weights[layer, :, start:stop]

        data = content(attention_page(rows, ["t"] * T, num_layers=1))
        assert max(asked) == 64
        cell = np.arange(T) * 64 // T
        wanted = np.zeros((2, 64, 64))
        for n in range(2):
            np.maximum.at(wanted[n], (cell[:, None], cell[None]), weights[0, n])
        np.testing.assert_array_equal(data["small"].reshape(2, 64, 64), np.round(255 * np.sqrt(wanted)))
        kept = data["kept"]
        np.testing.assert_array_equal(
            data["keys"].reshape(2, T, kept)[..., :4], np.argsort(-weights[0], axis=-1, kind="stable")[..., :4]
        )

    def test_no_text_ends_the_script(self, rng):
        tokens = ["</script><script>alert(1)</script>", "{{data}}", "{{title}}", "&", "\u2028"]
        page = attention_page(random_weights(rng), tokens, title="{{data}} </title><b>")
        assert page.count("<script") == 2
        assert content(page)["tokens"] == tokens
        assert "<title>{{data}} &lt;/title&gt;&lt;b&gt;</title>" in page
        assert "http" not in page.replace("http-equiv", "")

    @pytest.mark.smoke
    @pytest.mark.parametrize(
        ("weights", "tokens", "message"),
        [
            (np.ones((3, 5, 5)), list("abcde"), "weights do not fit 5 tokens"),
            (np.ones((1, 3, 5, 4)), list("abcde"), "weights do not fit 5 tokens"),
            (np.ones((1, 3, 0, 0)), [], "there must be 1 to 65535 tokens, got 0"),
            (lambda *_: np.ones((3, 2)), list("abcde"), "num_layers must be"),
            (np.full((1, 3, 5, 5), np.nan), list("abcde"), "weights of layer 0, queries 0 to 5, lie outside 0 to 1"),
            (np.full((1, 3, 5, 5), -0.2), list("abcde"), "weights of layer 0, queries 0 to 5, lie outside 0 to 1"),
        ],
    )
    def test_refuses(self, weights, tokens, message):
        with pytest.raises((ValueError, TypeError), match=rf"^attention_page: {message}"):
            attention_page(weights, tokens)


@pytest.mark.slow
def test_rows_are_those_of_the_specification():
    for name in ("modern", "grouped"):
        config, params = CONFIGS[name], random_params(CONFIGS[name])
        rows = attention_rows(IDS[:1], jax.tree.map(np.asarray, params), config=config)
        for layer in (1, 0, 2):
            wanted = layer_attention(IDS[:1], params, config=config, layer=layer)[0]
            np.testing.assert_allclose(rows(layer, 1, 4), wanted[:, 1:4], rtol=1e-9, atol=1e-12)


class TestCommand:
    @pytest.mark.slow
    def test_writes_the_page(self, weights, tmp_path, capsys):
        page = tmp_path / "heads.html"
        assert main(["embed", "a man is", "the meal", "--page", str(page), "--weights", weights]) == 0
        assert capsys.readouterr().err == f"attendax embed: wrote the attention of text 1, all layers, to {page}\n"
        data = content(page.read_text("utf-8"))
        assert (data["tokens"], data["layers"]) == (["[CLS]", "a", "man", "is", "[SEP]"], 2)
        assert (abs(data["weights"].reshape(-1, 5).sum(axis=1) / 65535 - 1) < 1e-4).all()

    @pytest.mark.parametrize(
        ("name", "message"), [("a.png", "ends in .html"), ("no/a.html", "there is no such folder")]
    )
    def test_refuses(self, weights, capsys, name, message):
        assert main(["embed", "a", "--page", name, "--weights", weights]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(chromium.found() is None, reason="Chromium is not installed (apt install chromium)")
class TestInABrowser:
    def test_point_press_and_dark(self, rng, tmp_path):
        weights = random_weights(rng)
        tokens = ["[CLS]", "<b>", "man", "", "[SEP]"]
        (tmp_path / "page.html").write_text(attention_page(weights, tokens, title="a <man>"), encoding="utf-8")
        with chromium.Browser(tmp_path / "profile") as page:
            page.open(tmp_path / "page.html")
            page.value("document.querySelectorAll('#heads button')[0].click()")
            assert page.value("document.querySelector('h1').textContent") == "a <man>"
            assert page.value("document.querySelectorAll('#heads button').length") == 6
            assert page.value("[...document.querySelectorAll('#tokens span')].map(s => s.textContent)") == [
                "[CLS]", "<b>", "man", "(empty)", "[SEP]"
            ]  # fmt: skip
            box = page.value(
                "(b => [b.left, b.top, b.width, b.height])(document.getElementById('large').getBoundingClientRect())"
            )

            def pair_at(i, j):
                page.point(box[0] + box[2] * (j + 0.5) / 5, box[1] + box[3] * (i + 0.5) / 5)
                return page.value("document.getElementById('pair').textContent")

            assert pair_at(1, 2) == f"<b> (2) \u2192 man (3): {weights[0, 0, 1, 2]:.4f}"
            assert pair_at(3, 0) == f"(empty) (4) \u2192 [CLS] (1): {weights[0, 0, 3, 0]:.4f}"
            page.value("document.querySelectorAll('#heads button')[0].focus()")
            for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight"):
                page.press(key)
            assert page.value("document.getElementById('which').textContent") == "layer 2, head 3"
            assert page.value("document.activeElement.getAttribute('aria-label')") == "layer 2, head 3"
            assert pair_at(4, 1).endswith(f"{weights[1, 2, 4, 1]:.4f}")
            page.value("document.getElementById('large').focus()")
            page.press("ArrowUp")
            assert page.value("document.getElementById('pair').textContent").endswith(f"{weights[1, 2, 3, 1]:.4f}")
            page.picture(tmp_path / "light.png")
            level = "document.querySelector('#heads canvas').getContext('2d').getImageData(0, 0, 1, 1).data[0]"
            back = "getComputedStyle(document.body).backgroundColor"
            light = page.value(level), page.value(back)
            page.dark(True)
            assert (page.value(level), page.value(back)) != light
            assert page.value(back) == "rgb(20, 23, 27)"
            assert page.errors == []

    @pytest.mark.parametrize("width", [360, 390, 1280])
    @pytest.mark.parametrize("T", [1, 7, 256])
    def test_fits_the_window(self, rng, tmp_path, T, width):
        """Tokens wrap, long ones too; the square is one; its axes are labelled, and no label covers another."""
        tokens = [f"token{k}" for k in range(T)]
        tokens[T // 2] = "Donaudampfschifffahrt" * 9
        page_text = attention_page(random_weights(rng, 6, 12, T), tokens, title="word " * 60)
        (tmp_path / "page.html").write_text(page_text, encoding="utf-8")
        with chromium.Browser(tmp_path / "profile") as page:
            size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 1000}
            page.ask("Emulation.setDeviceMetricsOverride", **size)
            page.open(tmp_path / "page.html")
            root = "document.documentElement"
            assert page.value(f"{root}.scrollWidth") == page.value(f"{root}.clientWidth") <= width
            box = page.value("(b => [b.width, b.height, b.right])(large.getBoundingClientRect())")
            assert abs(box[0] - box[1]) < 0.5
            assert box[0] >= 200
            wide = "[...document.querySelectorAll('#tokens span')].map(s => s.getBoundingClientRect().right)"
            assert max(page.value(wide)) <= width
            for axis, edges in (("queries", "[b.top, b.bottom]"), ("keys", "[b.left, b.right]")):
                boxes = page.value(
                    f"[...document.querySelectorAll('#{axis} span')].map(s => s.getBoundingClientRect())"
                    f".map(b => {edges})"
                )
                assert boxes
                assert all(one[1] <= other[0] + 2 for one, other in itertools.pairwise(boxes))
            assert page.errors == []

    def test_arrow_keys_at_once(self, rng, tmp_path):
        """Without a click; the labels of the pair that is shown are marked."""
        weights = random_weights(rng, 1, 1, 9)
        text = attention_page(weights, [f"t{k}" for k in range(9)])
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        i, j = 0, int(weights[0, 0, 0].argmax())  # the first query and the key that it gives most weight
        with chromium.Browser(tmp_path / "profile") as page:
            page.open(tmp_path / "page.html")
            for key, di, dj in (("ArrowUp", -1, 0), ("ArrowDown", 1, 0), ("ArrowRight", 0, 1), ("ArrowLeft", 0, -1)):
                page.press(key)
                i, j = min(max(i + di, 0), 8), min(max(j + dj, 0), 8)
                shown = page.value("document.getElementById('pair').textContent")
                assert shown == f"t{i} ({i + 1}) \u2192 t{j} ({j + 1}): {weights[0, 0, i, j]:.4f}"
                marked = page.value("[...document.querySelectorAll('.axis .on')].map(s => s.textContent)")
                assert marked == [f"t{i}", f"t{j}"]
