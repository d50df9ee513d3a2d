"""Attention maps: what is drawn is what was given, and it can be read."""

import numpy as np
import pytest

from attendax.figures import attention_map

pytest.importorskip("matplotlib", reason="the extra 'demo' is not installed")


class TestAttentionMap:
    def test_a_square_for_each_head_and_tokens_on_both_axes(self, rng):
        tokens = ["[CLS]", "a", "$x$", "東", "[SEP]"]
        weights = rng.random((3, 5, 5))
        figure = attention_map(weights, tokens, title="Layer 1")
        *panels, colorbar = figure.axes
        assert [panel.get_title() for panel in panels] == ["head 1", "head 2", "head 3"]
        for panel, head in zip(panels, weights, strict=True):
            np.testing.assert_array_equal(panel.images[0].get_array(), head)
        assert len({panel.images[0].get_clim() for panel in panels}) == 1
        assert colorbar.get_ylabel() == "attention weight (colour: its square root)"
        # Two rows of squares, the last one short: the first of each row and the lowest of each column are labelled.
        labels = ["[CLS]", "a", "$x$", "U+6771", "[SEP]"]
        assert [[label.get_text() for label in panel.get_yticklabels()] for panel in panels] == [labels, [], labels]
        assert [[label.get_text() for label in panel.get_xticklabels()] for panel in panels] == [[], labels, labels]

    def test_many_tokens_are_labelled_every_few(self, rng):
        figure = attention_map(rng.random((1, 90, 90)), [f"t{i}" for i in range(90)])
        labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
        assert labels[:3] == ["t0", "t3", "t6"]
        assert figure.get_size_inches().max() < 10

    def test_small_weights_can_be_seen(self):
        """Of 256 tokens each gets 1/256 beside one that gets all: a sixteenth of the colour scale, not nothing."""
        weights = np.full((1, 256, 256), 1 / 256)
        weights[0, 0] = np.eye(256)[0]
        figure = attention_map(weights, ["t"] * 256)
        figure.canvas.draw()
        assert figure.axes[0].images[0].norm(1 / 256) == pytest.approx(1 / 16)

    @pytest.mark.smoke
    @pytest.mark.parametrize("shape", [(5, 5), (2, 5, 4), (2, 4, 4), (0, 5, 5)])
    def test_refuses_weights_that_do_not_fit(self, shape):
        with pytest.raises(ValueError, match=r"^attention_map: weights do not fit 5 tokens"):
            attention_map(np.zeros(shape), list("abcde"))


def drawn_text(text, monkeypatch):
    """The title and the first label of a map, drawn; a warning that a glyph is missing would be an error."""
    from matplotlib import font_manager

    fonts = [font for font in font_manager.fontManager.ttflist if "matplotlib" in font.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    figure = attention_map(np.ones((1, 2, 2)), [text, "[SEP]"], title=text)
    figure.canvas.draw()
    return figure.get_suptitle(), figure.axes[0].get_yticklabels()[0].get_text(), figure


class TestFonts:
    def test_another_font_has_what_the_first_lacks(self, monkeypatch):
        """The mathematical script is in fonts that come with matplotlib, not in the first."""
        text = "a \U0001d4b6"
        title, label, figure = drawn_text(text, monkeypatch)
        assert (title, label) == (text, text)
        family = figure.axes[0].get_yticklabels()[0].get_fontfamily()
        assert (len(family), family[0]) == (2, "DejaVu Sans")

    def test_no_font_has_it(self, monkeypatch):
        """A label tells tokens apart; a title of code points could not be read."""
        title, label, _ = drawn_text("a 日本 \u200d", monkeypatch)
        assert title == "a □□ \u200d"
        assert label == "a U+65E5U+672C \u200d"

    def test_one_font_is_enough_for_plain_text(self):
        from attendax.figures import fonts_for

        assert list(fonts_for("Layer 1 of 2: a man")) == ["DejaVu Sans"]
        assert list(fonts_for("")) == ["DejaVu Sans"]
