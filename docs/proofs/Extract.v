(** The definitions that the theorems are about, as JSON: the tests run them on floats, beside [attendax.spec]. *)
From Coq Require Import Extraction.
From Attendax Require Import Attention Modifiers.
Extraction Language JSON.
Extraction "extracted.json" out lse backward no_modifier softcap alibi relative_bias compose.
