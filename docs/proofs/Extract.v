(** The definitions that the theorems are about, as JSON: the tests run them on floats, beside [attendax.spec]. *)
From Coq Require Import Extraction.
From Attendax Require Import Attention Modifiers Layers.
Extraction Language JSON.
Extraction "extracted.json" out lse backward no_modifier softcap alibi relative_bias compose
  softmax layer_norm feed_forward self_attention encoder_block_pre encoder_block_post.
