(** * Attention in tiles: any partition of the keys, in any order, gives the whole (online softmax) *)
From Attendax Require Import Attention Sums Gradient.
Set Implicit Arguments.
Local Open Scope R_scope.

(** ** Parts, and results *)

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

(** What a row has in the end: out, in one column, and lse. [None] is -inf. *)
Definition result : Type := R * option R.
Definition finish (p : part) : result := match p with nothing => (0, None) | some m l a => (a / l, Some (m + ln l)) end.

(** L9: the result over two disjoint sets of keys, from the result over each. *)
Definition merge (one other : result) : result :=
  match one, other with
  | (_, None), (_, None) => (0, None)
  | (_, None), r | r, (_, None) => r
  | (u, Some a), (v, Some b) => let l := ln (exp a + exp b) in (exp (a - l) * u + exp (b - l) * v, Some l)
  end.

(** To join the part of no key changes nothing. *)
Theorem join_nothing x : join nothing x = x /\ join x nothing = x.
Proof. now destruct x. Qed.

(** It does not matter which of two parts comes first. *)
Theorem join_commutes x y : join x y = join y x.
Proof. destruct x as [|m l a], y as [|n k b]; try easy; cbn; rewrite (Rmax_comm n m); f_equal; ring. Qed.

(** It does not matter which are joined first: parts may be joined along any tree, on any ring of devices. *)
Theorem join_associates x y z : join x (join y z) = join (join x y) z.
Proof.
  destruct x as [|m l a], y as [|m' l' a'], z as [|m'' l'' a'']; try easy; cbn; rewrite Rmax_assoc, !exp_minus.
  generalize (Rmax (Rmax m m') m'') (Rmax m m') (Rmax m' m''); intros; exponentials; f_equal; field; lra.
Qed.

(** Merging is commutative. *)
Theorem merge_commutes x y : merge x y = merge y x.
Proof. destruct x as [u [a|]], y as [v [b|]]; try easy; cbn; rewrite (Rplus_comm (exp b)); f_equal; ring. Qed.

(** Merging is associative. *)
Theorem merge_associates x y z : merge x (merge y z) = merge (merge x y) z.
Proof.
  destruct x as [u [a|]], y as [v [b|]], z as [w [c|]]; try easy; cbn; exponentials.
  rewrite !exp_minus, !exp_ln by (rewrite ?exp_ln by lra; lra); f_equal; [field; lra | do 2 f_equal; ring].
Qed.

(** To merge the result over no key, (0, -inf), changes nothing, if an lse of -inf has out 0. *)
Theorem merge_nothing u l : l <> None \/ u = 0 -> merge (0, None) (u, l) = (u, l).
Proof. intros [H | ->]; destruct l as [a|]; easy. Qed.

Section Row.
Context {S : Type} (score value : S -> R).
(** The part [p] holds the keys [l]: its numbers are the sums over them. *)
Definition holds (l : list S) (p : part) : Prop :=
  match p with
  | nothing => l = []
  | some m L a => l <> [] /\ L = Σ (j ∈ l) exp (score j - m) /\ a = Σ (j ∈ l) exp (score j - m) * value j
  end.

Lemma holds_join l l' p p' : holds l p -> holds l' p' -> holds (l ++ l') (join p p').
Proof.
  destruct p as [|m L a], p' as [|m' L' a']; cbn; try (intros ->; easy); [intros H ->; now rewrite app_nil_r|].
  intros (N & -> & ->) (N' & -> & ->); generalize (Rmax m m'); intro n; split; [intro E; now apply app_eq_nil in E|].
  rewrite !sum_app, !sum_times; split; f_equal; apply sum_ext; intros; rewrite !exp_minus; exponentials; fractions.
Qed.
Lemma holds_permutation l l' p : Permutation l l' -> holds l p -> holds l' p.
Proof.
  intro Q; destruct p as [|m L a]; cbn; [intros ->; now apply Permutation_nil|].
  rewrite !(sum_permutation _ Q); intros (N & E); split; [|exact E].
  intros ->; apply N; now apply Permutation_nil, Permutation_sym.
Qed.

(** To join two parts and finish is to finish each and merge the results. *)
Lemma finish_join l l' p p' : holds l p -> holds l' p' -> finish (join p p') = merge (finish p) (finish p').
Proof.
  assert (positive : forall l m, l <> [] -> 0 < Σ (j ∈ l) exp (score j - m)).
  { intros; apply sum_positive; auto using exp_pos. }
  destruct p as [|m L a], p' as [|m' L' a']; try easy; cbn; intros (N & E & _) (N' & E' & _).
  apply positive with (m := m) in N; apply positive with (m := m') in N'; rewrite <- E in N; rewrite <- E' in N'.
  assert (U : forall m L, 0 < L -> exp (m + ln L) = exp m * L) by (intros; now rewrite exp_plus, exp_ln).
  pose proof (Rmult_lt_0_compat _ _ (exp_pos m) N); pose proof (Rmult_lt_0_compat _ _ (exp_pos m') N').
  set (n := Rmax m m'); rewrite !exp_minus, !U, exp_ln by lra; exponentials; f_equal; [field; lra|]; f_equal.
  replace (exp m / exp n * L + exp m' / exp n * L') with ((exp m * L + exp m' * L') / exp n) by (field; lra).
  rewrite ln_div, ln_exp by lra; ring.
Qed.
End Row.

(** ** Tiled is whole *)

Lemma filter_permutation {X} (f : X -> bool) l l' : Permutation l l' -> Permutation (filter f l) (filter f l').
Proof. induction 1 as [|a|a b|]; cbn; try destruct (f a); try destruct (f b); eauto using Permutation. Qed.
Lemma sum_tiles {X} {l : list X} {tiles : list (list X)} {f : X -> R} :
  Permutation (concat tiles) l -> sum l f = Σ (tile ∈ tiles) sum tile f.
Proof. intro Q; now rewrite <- sum_concat, (sum_permutation f Q). Qed.

Section Tiled.
Context {T S D V B P : Type} (x : inputs reals T S D V B P) (g : cotangent reals T V).
Implicit Types (o : options reals T S D V B P).

(** A part holds those keys of a tile that row [i] may look at. Where there are none, it is [nothing]. *)
Definition holds_tile o i c (tile : list S) : part -> Prop :=
  holds (score o x i) (fun j => kept o i j * x (value j c)) (filter (allowed o i) tile).

Lemma finish_whole o i c p : holds_tile o i c (keys o) p -> finish p = (out o x i c, lse o x i).
Proof.
  unfold holds_tile, out; fold (seen o i); destruct p as [|m L a]; cbn [holds finish]; [unfold lse; now intros ->|].
  intros (N & -> & ->); pose proof (sum_exp_positive o x i N); pose proof (exp_pos m); setoid_rewrite exp_minus.
  replace (Σ (j ∈ seen o i) exp (score o x i j) / exp m) with (sum_exp o x i / exp m) by (apply sum_times_r).
  rewrite lse_is_log_sum_exp, ln_div, ln_exp by easy; apply (f_equal2 pair); [|f_equal; algebra].
  unfold Rdiv at 1; rewrite sum_times_r; apply sum_ext; intros j _; rewrite weight_is_softmax; fractions.
Qed.

(** The keys may be cut into tiles anyhow, and the tiles may come in any order: out and lse are those of the whole. *)
Theorem tiled_is_whole o i c tiles parts :
  Permutation (concat tiles) (keys o) -> Forall2 (holds_tile o i c) tiles parts ->
  finish (fold_right join nothing parts) = (out o x i c, lse o x i).
Proof.
  intros Q F; apply (filter_permutation (allowed o i)) in Q; apply finish_whole, (holds_permutation _ _ _ Q); clear Q.
  induction F; [easy|]; cbn; rewrite filter_app; now apply holds_join.
Qed.

(** Merging the results over two lists of keys is attention over both: over the union, if they are disjoint (L9). *)
Theorem merge_is_union o i c l l' :
  let result_of l := (out (restricted o (queries o) l) x i c, lse (restricted o (queries o) l) x i) in
  merge (result_of l) (result_of l') = result_of (l ++ l').
Proof.
  assert (part_of : forall l, exists p, holds_tile (restricted o (queries o) l) i c l p).
  { intro m; unfold holds_tile; cbn; destruct (filter (allowed o i) m) as [|j js] eqn:E.
    - now exists nothing.
    - eexists (some 0 _ _); repeat split; easy. }
  destruct (part_of l) as [p H], (part_of l') as [p' H']; cbv beta zeta.
  rewrite <- (finish_whole _ _ _ _ H), <- (finish_whole _ _ _ _ H'), <- (finish_join _ _ _ _ _ _ H H').
  apply finish_whole; unfold holds_tile; cbn; rewrite filter_app; exact (holds_join _ _ _ _ _ _ H H').
Qed.

(** ** The backward in tiles: from lse and delta, both of which the forward leaves behind *)

Definition weight_from_lse o i j : R := exp (score o x i j - lse_or_0 o x i).
Definition grad_score_from_lse o i j : R := weight_from_lse o i j *
  (grad_weight o x g i j - (Σ (c ∈ columns o) dout g i c * out o x i c - dlse g i)).

Lemma weight_is_from_lse o i j : In j (seen o i) -> weight o x i j = weight_from_lse o i j.
Proof.
  intro H; assert (N : seen o i <> []) by (intro E; now rewrite E in H).
  unfold weight_from_lse, lse_or_0; rewrite lse_is_log_sum_exp, weight_is_softmax, exp_minus, exp_ln;
    auto using sum_exp_positive.
Qed.

(** The gradient of the score of a seen pair can be had from lse and delta (L9: delta becomes delta - dlse). *)
Theorem grad_score_is_from_lse o i j : In j (seen o i) -> grad_score o x g i j = grad_score_from_lse o i j.
Proof. intro; unfold grad_score, grad_score_from_lse; rewrite delta_is_dout_out, weight_is_from_lse; easy || algebra.
Qed.

(** The gradient of a query sums over tiles of keys, those of a key and its value over tiles of queries, those of the
    bias and of the modifier's arrays over both; in any order. A tile needs nothing of the others but lse and delta. *)
Theorem tiled_backward_is_backward o query_tiles key_tiles at_ : of_this_call o at_ ->
  Permutation (concat query_tiles) (queries o) -> Permutation (concat key_tiles) (keys o) ->
  let tile ts ss := gradients (restricted o ts ss) x g (weight_from_lse o) (grad_score_from_lse o) at_ : R in
  backward o x g at_ = match at_ with
    | query _ _ => Σ (ss ∈ key_tiles) tile (queries o) ss
    | key _ _ | value _ _ => Σ (ts ∈ query_tiles) tile ts (keys o)
    | bias _ | array _ => Σ (ts ∈ query_tiles) Σ (ss ∈ key_tiles) tile ts ss
    end.
Proof.
  intros C Q K; cbv beta zeta; transitivity (gradients o x g (weight_from_lse o) (grad_score_from_lse o) at_).
  { apply gradients_ext; try easy; split; [easy|]; auto using weight_is_from_lse, grad_score_is_from_lse. }
  destruct at_ as [i d | j d | j c | b | p]; cbn [gradients]; unfold seen, seers, readers, seen;
    cbn [queries keys allowed same_bias restricted]; repeat setoid_rewrite sum_filter;
    [exact (sum_tiles K) | exact (sum_tiles Q) | exact (sum_tiles Q) | ..]; (etransitivity; [exact (sum_tiles Q)|]);
    apply sum_ext; intros ts _; rewrite (sum_swap key_tiles); apply sum_ext; intros i _; exact (sum_tiles K).
Qed.
End Tiled.
