(** The definitions that the theorems are about, as JSON: the tests run them on floats, beside [attendax.spec]. *)
From Coq Require Import Extraction.
From Attendax Require Import Attention Modifiers Sinks Layers.
Extraction Language JSON.
Extraction "extracted.json" out lse backward no_modifier softcap alibi relative_bias compose with_sink sink_inputs
  softmax layer_norm feed_forward self_attention encoder_block_pre encoder_block_post.
