(** * Attention in tiles: any partition of the keys, in any order, gives the whole (online softmax) *)
From Coq Require Import List Bool Reals Lra Permutation.
From Coquelicot Require Import Coquelicot.
From Attendax Require Import Attention Sums Gradient.
Import ListNotations.
Set Implicit Arguments.
Local Open Scope R_scope.

(** ** Parts and their join *)

(** What a kernel knows after some keys of one row, for one column of the values: a shift [m], the largest score or any
    other number, the sum [l] of [exp (s - m)], and the sum [a] of [exp (s - m) v]. [nothing] is the part of no key. *)
Inductive part := nothing | some (m l a : R).

Definition join (x y : part) : part :=
  match x, y with
  | nothing, z | z, nothing => z
  | some m l a, some m' l' a' =>
      let n := Rmax m m' in
      some n (exp (m - n) * l + exp (m' - n) * l') (exp (m - n) * a + exp (m' - n) * a')
  end.

Lemma some_eq m l a m' l' a' : m = m' -> l = l' -> a = a' -> some m l a = some m' l' a'.
Proof. now intros -> -> ->. Qed.

Lemma exp_minus (u w v : R) : exp (w - v) * exp (u - w) = exp (u - v).
Proof. rewrite <- exp_plus; f_equal; ring. Qed.

(** The part of no key is neutral. *)
Theorem join_nothing x : join nothing x = x /\ join x nothing = x.
Proof. now destruct x. Qed.

(** Which part comes first does not matter, *)
Theorem join_commutes x y : join x y = join y x.
Proof.
  destruct x, y; try easy; cbn; rewrite (Rmax_comm m0 m); apply some_eq; [reflexivity | apply Rplus_comm ..].
Qed.

(** nor which are joined first: parts may be joined along any tree, on any ring of devices. *)
Theorem join_associates x y z : join x (join y z) = join (join x y) z.
Proof.
  destruct x as [|m l a], y as [|m' l' a'], z as [|m'' l'' a'']; try easy; cbn.
  rewrite Rmax_assoc; generalize (Rmax (Rmax m m') m'') (Rmax m m') (Rmax m' m''); intros n n1 n2.
  apply some_eq; [reflexivity | |]; rewrite !Rmult_plus_distr_l, <- !Rmult_assoc, !exp_minus; ring.
Qed.

Section Row.
Context {S : Type} (score value : S -> R).

(** The part [p] holds the keys [l]: its numbers are the sums over them. *)
Definition holds (l : list S) (p : part) : Prop :=
  match p with
  | nothing => l = []
  | some m L a => l <> [] /\ L = Σ (j ∈ l) exp (score j - m) /\ a = Σ (j ∈ l) exp (score j - m) * value j
  end.

(** Any shift will do: where it lies is a matter of rounding alone. *)
Lemma holds_shift l m n L a : holds l (some m L a) -> holds l (some n (exp (m - n) * L) (exp (m - n) * a)).
Proof.
  intros (N & -> & ->); split; [easy|]; split; rewrite sum_times; apply sum_ext; intros;
    now rewrite <- ?Rmult_assoc, exp_minus.
Qed.

Lemma holds_join l l' p p' : holds l p -> holds l' p' -> holds (l ++ l') (join p p').
Proof.
  destruct p as [|m L a], p' as [|m' L' a']; cbn; try (intros ->; easy).
  - intros H ->; now rewrite app_nil_r.
  - intros (N & -> & ->) (N' & -> & ->); generalize (Rmax m m'); intro n; repeat split.
    + intro E; now apply app_eq_nil in E.
    + rewrite sum_app, !sum_times; f_equal; apply sum_ext; intros; now rewrite exp_minus.
    + rewrite sum_app, !sum_times; f_equal; apply sum_ext; intros; now rewrite <- Rmult_assoc, exp_minus.
Qed.

Lemma holds_tiles tiles parts : Forall2 holds tiles parts -> holds (concat tiles) (fold_right join nothing parts).
Proof. induction 1; [reflexivity | now apply holds_join]. Qed.

Lemma holds_permutation l l' p : Permutation l l' -> holds l p -> holds l' p.
Proof.
  intro Q; destruct p as [|m L a]; cbn.
  - intros ->; now apply Permutation_nil.
  - intros (N & -> & ->); repeat split; try now apply sum_permutation.
    intros ->; apply N; now apply Permutation_nil, Permutation_sym.
Qed.
End Row.

(** ** Tiled is whole *)

Section Tiled.
Context {T S D V B P : Type} (o : options reals T S D V B P) (x : inputs reals T S D V B P).

(** A part holds those keys of a tile that row [i] may look at; without such keys it is [nothing]. *)
Definition holds_tile i c (tile : list S) : part -> Prop :=
  holds (score o x i) (fun j => kept o i j * x (value j c)) (filter (allowed o i) tile).

Definition finish_out (p : part) : R := match p with nothing => 0 | some m l a => a / l end.
Definition finish_lse (p : part) : option R := match p with nothing => None | some m l a => Some (m + ln l) end.

Lemma finish i c p : holds_tile i c (keys o) p -> finish_out p = out o x i c /\ finish_lse p = lse o x i.
Proof.
  unfold holds_tile, out; fold (seen o i); destruct p as [|m L a]; cbn [holds finish_out finish_lse].
  - unfold lse; intros ->; split; reflexivity.
  - intros (N & -> & ->); pose proof (sum_exp_positive o x i N) as Q; pose proof (exp_pos (- m)) as M.
    assert (E : Σ (j ∈ seen o i) exp (score o x i j - m) = exp (- m) * sum_exp o x i).
    { unfold sum_exp; rewrite sum_times; apply sum_ext; intros; rewrite <- exp_plus; f_equal; algebra. }
    rewrite lse_is_log_sum_exp, E by easy; split.
    + unfold Rdiv; rewrite sum_times_r; apply sum_ext; intros j _; rewrite weight_is_softmax.
      replace (exp (score o x i j - m)) with (exp (- m) * exp (score o x i j)); [fractions|].
      rewrite <- exp_plus; f_equal; algebra.
    + rewrite ln_mult, ln_exp by easy; f_equal; algebra.
Qed.

Lemma filter_concat (f : S -> bool) tiles : concat (map (filter f) tiles) = filter f (concat tiles).
Proof. induction tiles as [|l tiles IH]; [reflexivity|]; cbn; now rewrite IH, filter_app. Qed.

Lemma filter_permutation {X} (f : X -> bool) l l' : Permutation l l' -> Permutation (filter f l) (filter f l').
Proof. induction 1 as [|a l l' H IH|a b l|l l' l'' H IH H' IH']; cbn; try destruct (f a); try destruct (f b);
  eauto using Permutation. Qed.

(** The keys may be cut into tiles anyhow, and the tiles may come in any order: out and lse are those of the whole. *)
Theorem tiled_is_whole i c tiles parts :
  Permutation (concat tiles) (keys o) -> Forall2 (holds_tile i c) tiles parts ->
  let p := fold_right join nothing parts in finish_out p = out o x i c /\ finish_lse p = lse o x i.
Proof.
  intros Q F; apply finish; unfold holds_tile.
  apply holds_permutation with (concat (map (filter (allowed o i)) tiles)).
  - rewrite filter_concat; now apply filter_permutation.
  - apply holds_tiles; clear Q; induction F; constructor; easy.
Qed.

(** ** The backward in tiles: from lse and delta, both of which the forward leaves behind *)

Context (g : cotangent reals T V).
Definition weight_from_lse i j : R := exp (score o x i j - lse_or_0 o x i).
Definition grad_score_from_lse i j : R := weight_from_lse i j *
  (grad_weight o x g i j - (Σ (c ∈ columns o) dout g i c * out o x i c - dlse g i)).

Lemma weight_is_weight_from_lse i j : In j (seen o i) -> weight o x i j = weight_from_lse i j.
Proof.
  intro H; assert (N : seen o i <> []) by (intro E; now rewrite E in H).
  unfold weight_from_lse, lse_or_0; rewrite lse_is_log_sum_exp, weight_is_softmax by easy.
  pose proof (sum_exp_positive o x i N) as Q; unfold Rminus; rewrite exp_plus, exp_Ropp, exp_ln; easy.
Qed.

(** The gradient of one pair's score, from lse and delta (L9: delta becomes delta - dlse), is that of the definition. *)
Theorem grad_score_is_from_lse i j : In j (seen o i) -> grad_score o x g i j = grad_score_from_lse i j.
Proof.
  intro H; unfold grad_score, grad_score_from_lse; rewrite delta_is_dout_out, weight_is_weight_from_lse by easy.
  algebra.
Qed.

Lemma sum_tiles {X} (l : list X) (tiles : list (list X)) (p : X -> bool) (f : X -> R) :
  Permutation (concat tiles) l -> Σ (tile ∈ tiles) sum (filter p tile) f = sum (filter p l) f.
Proof.
  intro Q; rewrite <- (sum_permutation f (filter_permutation p Q)); clear Q.
  induction tiles as [|t tiles IH]; [reflexivity|]; cbn [concat]; now rewrite filter_app, sum_app, sum_cons, IH.
Qed.

Definition grad_product_from_lse i j : R :=
  grad_score_from_lse i j * slope (score_mod o) (arrays x) i j (product o x i j).

Lemma sum_all_tiles {X} (l : list X) (tiles : list (list X)) (f : X -> R) :
  Permutation (concat tiles) l -> Σ (tile ∈ tiles) sum tile f = sum l f.
Proof. intro Q; rewrite <- (sum_permutation f Q), <- sum_concat_map, map_id; reflexivity. Qed.

(** The gradient of a query sums over tiles of keys, those of a key and its value over tiles of queries, those of the
    bias and of the modifier's arrays over both; in any order. Of other tiles a row needs only its lse and delta. *)
Theorem tiled_backward_is_backward query_tiles key_tiles :
  Permutation (concat query_tiles) (queries o) -> Permutation (concat key_tiles) (keys o) ->
  (forall i d, backward o x g (query i d) = Σ (tile ∈ key_tiles) Σ (j ∈ filter (allowed o i) tile)
    scale o * grad_product_from_lse i j * x (key j d)) /\
  (forall j d, In j (keys o) -> backward o x g (key j d) =
    Σ (tile ∈ query_tiles) Σ (i ∈ filter (fun i => allowed o i j) tile)
    scale o * grad_product_from_lse i j * x (query i d)) /\
  (forall j c, In j (keys o) -> backward o x g (value j c) =
    Σ (tile ∈ query_tiles) Σ (i ∈ filter (fun i => allowed o i j) tile)
    weight_from_lse i j * kept o i j * dout g i c) /\
  (forall b, backward o x g (bias b) = Σ (rows ∈ query_tiles) Σ (i ∈ rows) Σ (tile ∈ key_tiles)
    Σ (j ∈ filter (allowed o i) tile) if same_bias o (bias_at o i j) b then grad_score_from_lse i j else 0) /\
  (forall p, backward o x g (array p) = Σ (rows ∈ query_tiles) Σ (i ∈ rows) Σ (tile ∈ key_tiles)
    Σ (j ∈ filter (allowed o i) tile)
    grad_score_from_lse i j * slope_in (score_mod o) (arrays x) i j (product o x i j) p).
Proof.
  intros Q K; repeat split.
  - intros i d; rewrite (sum_tiles _ _ _ K); apply sum_ext; intros j H.
    unfold grad_product_from_lse; rewrite <- grad_score_is_from_lse by easy; reflexivity.
  - intros j d J; rewrite (sum_tiles _ _ _ Q); apply sum_ext; intros i H; apply seers_see in H; [|easy].
    unfold grad_product_from_lse; rewrite <- grad_score_is_from_lse by easy; reflexivity.
  - intros j c J; rewrite (sum_tiles _ _ _ Q); apply sum_ext; intros i H; apply seers_see in H; [|easy].
    rewrite <- weight_is_weight_from_lse by easy; reflexivity.
  - intro b; rewrite (sum_all_tiles _ _ Q); apply sum_ext; intros i _; rewrite (sum_tiles _ _ _ K); unfold readers.
    rewrite sum_filter; apply sum_ext; intros j H; rewrite <- grad_score_is_from_lse by easy.
    now destruct (same_bias o (bias_at o i j) b).
  - intro p; rewrite (sum_all_tiles _ _ Q); apply sum_ext; intros i _; rewrite (sum_tiles _ _ _ K).
    apply sum_ext; intros j H; now rewrite grad_score_is_from_lse.
Qed.
End Tiled.

(** ** L9: merge *)

(** Out (of one column) and lse of a row over some keys. *)
Definition result : Type := R * option R.

Definition merge (one other : result) : result :=
  match one, other with
  | (_, None), (_, None) => (0, None)
  | (_, None), r | r, (_, None) => r
  | (u, Some a), (v, Some b) => let l := ln (exp a + exp b) in (exp (a - l) * u + exp (b - l) * v, Some l)
  end.

Lemma exp_minus_ln (a s : R) : 0 < s -> exp (a - ln s) = exp a / s.
Proof. intro; unfold Rminus, Rdiv; now rewrite exp_plus, exp_Ropp, exp_ln. Qed.

(** Merging is commutative, *)
Theorem merge_commutes x y : merge x y = merge y x.
Proof.
  destruct x as [u [a|]], y as [v [b|]]; try easy; cbn; rewrite (Rplus_comm (exp b)); f_equal; ring.
Qed.

(** and associative, *)
Theorem merge_associates x y z : merge x (merge y z) = merge (merge x y) z.
Proof.
  destruct x as [u [a|]], y as [v [b|]], z as [w [c|]]; try easy; cbn.
  pose proof (exp_pos a); pose proof (exp_pos b); pose proof (exp_pos c).
  rewrite !exp_minus_ln, !exp_ln by (rewrite ?exp_ln by lra; lra).
  f_equal; [field; repeat split; lra | f_equal; f_equal; ring].
Qed.

(** and the result over no key, (0, -inf), is neutral. *)
Theorem merge_nothing u l : l <> None \/ u = 0 -> merge (0, None) (u, l) = (u, l).
Proof. intros [H | ->]; destruct l as [a|]; easy. Qed.

Section Merge.
Context {T S D V B P : Type} (o : options reals T S D V B P) (x : inputs reals T S D V B P).

(** The same call over some keys only. *)
Definition with_keys (l : list S) : options reals T S D V B P :=
  {| queries := queries o; keys := l; widths := widths o; columns := columns o; biases := biases o;
     entries := entries o; allowed := allowed o; scale := scale o; score_mod := score_mod o; bias_at := bias_at o;
     same_bias := same_bias o; kept := kept o |}.

Definition result_of (l : list S) i c : result := (out (with_keys l) x i c, lse (with_keys l) x i).

Lemma out_is_ratio (l : list S) i c :
  out (with_keys l) x i c =
  (Σ (j ∈ seen (with_keys l) i) exp (score o x i j) * (kept o i j * x (value j c))) / sum_exp (with_keys l) x i.
Proof.
  unfold out, Rdiv; rewrite sum_times_r; apply sum_ext; intros j _; rewrite weight_is_softmax; unfold Rdiv.
  change (score (with_keys l)) with (score o); change (kept (with_keys l)) with (kept o); algebra.
Qed.

(** Merging two disjoint sets of keys is attention over their union. *)
Theorem merge_is_union l l' i c : merge (result_of l i c) (result_of l' i c) = result_of (l ++ l') i c.
Proof.
  assert (U : seen (with_keys (l ++ l')) i = seen (with_keys l) i ++ seen (with_keys l') i) by apply filter_app.
  unfold result_of; rewrite !out_is_ratio.
  destruct (some_or_none (with_keys l) i) as [E|N], (some_or_none (with_keys l') i) as [E'|N'].
  - unfold lse, sum_exp; rewrite U, E, E'; cbn; f_equal; unfold Rdiv; ring.
  - unfold lse at 1; rewrite E, (lse_is_log_sum_exp _ _ _ N'), lse_is_log_sum_exp; unfold sum_exp; rewrite U, E; easy.
  - unfold lse at 2; rewrite E', (lse_is_log_sum_exp _ _ _ N), lse_is_log_sum_exp; unfold sum_exp;
      rewrite U, E', app_nil_r; easy.
  - assert (N'' : seen (with_keys (l ++ l')) i <> []) by (rewrite U; intro H; now apply app_eq_nil in H).
    rewrite !lse_is_log_sum_exp by easy; cbn [merge].
    pose proof (sum_exp_positive _ x i N) as Q; pose proof (sum_exp_positive _ x i N') as Q'.
    replace (sum_exp (with_keys (l ++ l')) x i) with (sum_exp (with_keys l) x i + sum_exp (with_keys l') x i)
      by (unfold sum_exp; rewrite U; symmetry; apply sum_app).
    rewrite U, sum_app, !exp_minus_ln, !exp_ln by (rewrite ?exp_ln by easy; lra).
    apply (f_equal2 pair); [fractions | reflexivity].
Qed.
End Merge.
