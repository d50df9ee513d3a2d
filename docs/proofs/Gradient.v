(** * The backward is the gradient: attention over the real numbers

    Move every input along a smooth curve. [tangent_out] and [tangent_lse] say how [out] and [lse] move, and [backward]
    is the transpose of that. Both together: it is the gradient. *)
From Coq Require Import List Bool Reals Lra FunctionalExtensionality.
From Coquelicot Require Import Coquelicot.
From Attendax Require Import Attention Sums.
Import ListNotations.
Set Implicit Arguments.
Local Open Scope R_scope.

Section Gradient.
Context {T S D V B P : Type} (o : options reals T S D V B P).
Notation inputs := (inputs reals T S D V B P).
Notation cotangent := (cotangent reals T V).
Implicit Types (x y dx : inputs) (g : cotangent).

(** ** The definition is the formula: softmax, and the logarithm of a sum of exponentials (L2, L9) *)

Definition sum_exp x i : R := Σ (j ∈ seen o i) exp (score o x i j).

Lemma sum_exp_positive x i : seen o i <> [] -> 0 < sum_exp x i.
Proof. intro N; apply (sum_positive (X := S)); [intro; apply exp_pos | exact N]. Qed.

Lemma shifted x i (s : R) : exp (s - shift o x i) = exp (- shift o x i) * exp s.
Proof. rewrite <- exp_plus; f_equal; algebra. Qed.

Lemma total_shifted x i : total o x i = exp (- shift o x i) * sum_exp x i.
Proof. unfold total, sum_exp; rewrite sum_times; apply sum_ext; intros; apply shifted. Qed.

(** Weights are the softmax of the scores: the shift, which keeps a program from overflow, changes nothing. *)
Theorem weight_is_softmax x i j : weight o x i j = exp (score o x i j) / sum_exp x i.
Proof.
  unfold weight; rewrite total_shifted; in_reals; rewrite shifted; unfold Rdiv; rewrite Rinv_mult.
  pose proof (exp_pos (- shift o x i)); generalize (/ sum_exp x i); intro; fractions.
Qed.

(** The lse is the logarithm of the sum of the exponentials of the scores. *)
Theorem lse_is_log_sum_exp x i : seen o i <> [] -> lse o x i = Some (ln (sum_exp x i)).
Proof.
  intro N; unfold lse; rewrite total_shifted; in_reals; pose proof (sum_exp_positive x i N).
  rewrite ln_mult, ln_exp by (try apply exp_pos; easy).
  destruct (seen o i); [easy|]; f_equal; algebra.
Qed.

(** The weights of a query that may look at some key sum to 1 (L7). *)
Theorem weights_sum_to_1 x i : seen o i <> [] -> Σ (j ∈ seen o i) weight o x i j = 1.
Proof.
  intro N; apply (sum_exp_positive x) in N; transitivity (/ sum_exp x i * sum_exp x i); [|fractions].
  unfold sum_exp at 2; rewrite sum_times; apply sum_ext; intros; rewrite weight_is_softmax; unfold Rdiv; algebra.
Qed.

(** The number [delta] of a row, the average of the gradients of its weights, needs no weights: it is dout . out. *)
Theorem delta_is_dout_out x g i : delta o x g i = Σ (c ∈ columns o) dout g i c * out o x i c.
Proof.
  unfold delta, grad_weight, out; symmetry.
  transitivity (Σ (c ∈ columns o) Σ (j ∈ seen o i) dout g i c * (weight o x i j * kept o i j * x (value j c))).
  - apply sum_ext; intros; apply sum_times.
  - rewrite sum_swap; apply sum_ext; intros; in_reals; rewrite !sum_times_r; apply sum_ext; intros; algebra.
Qed.

(** ** The tangent: how out and lse move *)

Definition tangent_product x dx i j : R :=
  scale o * Σ (d ∈ widths o) (dx (query i d) * x (key j d) + x (query i d) * dx (key j d)).
Definition tangent_score x dx i j : R :=
  slope (score_mod o) (arrays x) i j (product o x i j) * tangent_product x dx i j
  + Σ (p ∈ entries o) slope_in (score_mod o) (arrays x) i j (product o x i j) p * dx (array p)
  + dx (bias (bias_at o i j)).
Definition tangent_lse x dx i : R := Σ (j ∈ seen o i) weight o x i j * tangent_score x dx i j.
Definition tangent_out x dx i c : R :=
  Σ (j ∈ seen o i) (weight o x i j * (tangent_score x dx i j - tangent_lse x dx i) * kept o i j * x (value j c)
                    + weight o x i j * kept o i j * dx (value j c)).

(** The curve [x] passes [x t] with speed [dx]. *)
Definition moves (x : R -> inputs) (t : R) dx := forall at_, is_derive (fun t => x t at_ : R) t (dx at_).

(** The modifier has the derivatives that it says: however its arrays [a] and the score [z] move. *)
Definition true_slopes (m : modifier reals T S P) :=
  forall i j (a : R -> P -> R) (z : R -> R) (t : R) (da : P -> R) (dz : R),
  (forall p, is_derive (fun t => a t p) t (da p)) -> is_derive z t dz ->
  is_derive (fun t => modify m (a t) i j (z t) : R) t
    (slope m (a t) i j (z t) * dz + Σ (p ∈ entries o) slope_in m (a t) i j (z t) p * da p).

(** The log-sum-exp as a number; where there is none, any constant will do. *)
Definition lse_or_0 x i : R := match lse o x i with Some r => r | None => 0 end.

Section Curve.
Context (slopes : true_slopes (score_mod o)).
Context {x : R -> inputs} {t : R} {dx : inputs} (M : moves x t dx).

Lemma some_or_none i : seen o i = [] \/ seen o i <> [].
Proof. destruct (seen o i); [now left | now right]. Qed.

Lemma score_moves i j : is_derive (fun t => score o (x t) i j : R) t (tangent_score (x t) dx i j).
Proof.
  apply (derive_plus (f := fun t => modify _ _ i j _ : R)); [|apply M].
  apply (slopes i j (fun t => arrays (x t)) (z := fun t => product o (x t) i j) (fun p => dx (array p)));
    [intro; apply M|].
  apply (derive_scaled _ (f := fun t => Σ (d ∈ widths o) x t (query i d) * x t (key j d))).
  apply derive_sum; intros d _; apply (derive_times (f := fun t => x t (query i d) : R)); apply M.
Qed.

Lemma sum_exp_moves i : seen o i <> [] ->
  is_derive (fun t => sum_exp (x t) i) t (sum_exp (x t) i * tangent_lse (x t) dx i).
Proof.
  intro N; apply derive_eq with (Σ (j ∈ seen o i) exp (score o (x t) i j) * tangent_score (x t) dx i j).
  - apply derive_sum; intros j _; apply (derive_exp (f := fun t => score o (x t) i j)), score_moves.
  - apply (sum_exp_positive (x t)) in N; unfold tangent_lse; rewrite sum_times.
    apply sum_ext; intros; rewrite weight_is_softmax; fractions.
Qed.

Lemma weight_moves i j : seen o i <> [] -> is_derive (fun t => weight o (x t) i j : R) t
  (weight o (x t) i j * (tangent_score (x t) dx i j - tangent_lse (x t) dx i)).
Proof.
  intro N; pose proof (sum_exp_positive (x t) i N) as Q.
  apply derive_ext with (fun t => exp (score o (x t) i j) / sum_exp (x t) i);
    [intro; now rewrite weight_is_softmax|].
  eapply derive_eq.
  - apply derive_divided; [lra | apply (derive_exp (f := fun t => score o (x t) i j)), score_moves |
      apply sum_exp_moves, N].
  - rewrite weight_is_softmax; fractions.
Qed.

(** The lse moves as the tangent says; where a query may look at no key, not at all. *)
Theorem lse_moves i : is_derive (fun t => lse_or_0 (x t) i) t (tangent_lse (x t) dx i).
Proof.
  destruct (some_or_none i) as [E|N].
  - unfold lse_or_0, lse, tangent_lse; rewrite E; exact (derive_constant 0 t).
  - pose proof (sum_exp_positive (x t) i N) as Q.
    apply derive_ext with (fun t => ln (sum_exp (x t) i)).
    { intro u; unfold lse_or_0; now rewrite lse_is_log_sum_exp. }
    eapply derive_eq; [apply derive_ln, sum_exp_moves; easy | fractions].
Qed.

(** Out moves as the tangent says, empty rows included. *)
Theorem out_moves i c : is_derive (fun t => out o (x t) i c : R) t (tangent_out (x t) dx i c).
Proof.
  destruct (some_or_none i) as [E|N]; [unfold out, tangent_out; rewrite E; exact (derive_constant 0 t)|].
  apply derive_sum; intros j _.
  apply (derive_times (f := fun t => (weight o (x t) i j * kept o i j)%R) (g := fun t => x t (value j c))); [|apply M].
  eapply derive_eq; [exact (derive_times (weight_moves i j N) (derive_constant (kept o i j) t)) | algebra].
Qed.
End Curve.

(** ** The backward is the transpose of the tangent (L13) *)

(** All places of all inputs, and the products of what is there. *)
Definition places : list (place T S D V B P) :=
  concat (map (fun i => map (query i) (widths o)) (queries o)) ++
  concat (map (fun j => map (key j) (widths o)) (keys o)) ++
  concat (map (fun j => map (value j) (columns o)) (keys o)) ++
  map (fun b => bias b) (biases o) ++ map (fun p => array p) (entries o).
Definition inputs_dot (x y : inputs) : R := Σ (at_ ∈ places) x at_ * y at_.
Definition outputs_dot g (dout : T -> V -> R) (dlse : T -> R) : R :=
  Σ (i ∈ queries o) (Σ (c ∈ columns o) Attention.dout g i c * dout i c + Attention.dlse g i * dlse i).

(** The list of the bias names each number once, and every number that a pair reads. *)
Definition whole_bias := NoDup (biases o) /\ forall i j, In (bias_at o i j) (biases o).

Lemma inputs_dot_parts x y : inputs_dot x y =
  Σ (i ∈ queries o) Σ (d ∈ widths o) x (query i d) * y (query i d) +
  Σ (j ∈ keys o) Σ (d ∈ widths o) x (key j d) * y (key j d) +
  Σ (j ∈ keys o) Σ (c ∈ columns o) x (value j c) * y (value j c) +
  Σ (b ∈ biases o) x (bias b) * y (bias b) + Σ (p ∈ entries o) x (array p) * y (array p).
Proof.
  unfold inputs_dot, places; rewrite !sum_app, !sum_concat_map, !(sum_map (Y := place T S D V B P)).
  rewrite <- !Rplus_assoc; repeat apply (f_equal2 Rplus); try reflexivity; apply sum_ext; intros; apply sum_map.
Qed.

(** Sum over the pairs by rows, or by columns. *)
Lemma seen_seers (f : T -> S -> R) :
  Σ (i ∈ queries o) Σ (j ∈ seen o i) f i j = Σ (j ∈ keys o) Σ (i ∈ seers o j) f i j.
Proof.
  transitivity (Σ (i ∈ queries o) Σ (j ∈ keys o) if allowed o i j then f i j else 0).
  - apply sum_ext; intros i _; apply sum_filter.
  - rewrite sum_swap; apply sum_ext; intros j _; symmetry; apply sum_filter.
Qed.

(** What pairs read by [bias_at] (a gather) goes back by a sum over the readers of each number (a scatter). *)
Lemma gather_scatter (f : T -> S -> R) (r : B -> R) : whole_bias ->
  Σ (i ∈ queries o) Σ (j ∈ seen o i) f i j * r (bias_at o i j) =
  Σ (b ∈ biases o) (Σ (i ∈ queries o) Σ (j ∈ readers o i b) f i j) * r b.
Proof.
  intros [N I].
  transitivity (Σ (b ∈ biases o) Σ (i ∈ queries o) Σ (j ∈ seen o i)
    (if same_bias o (bias_at o i j) b then f i j * r b else 0)).
  - rewrite sum_swap; apply sum_ext; intros i _; rewrite sum_swap; apply sum_ext; intros j _; symmetry.
    exact (sum_pick (same_bias o) _ (fun b => f i j * r b) N (I i j)).
  - apply sum_ext; intros b _; rewrite sum_times_r; apply sum_ext; intros i _.
    unfold readers; rewrite sum_times_r, sum_filter; apply sum_ext; intros j _.
    destruct (same_bias o (bias_at o i j) b); reflexivity.
Qed.

Section Transpose.
Context (x dx : inputs) (g : cotangent).
Let ds i j : R := grad_score o x g i j.
Let dz i j : R := grad_product o x g i j.

(** One query's part: the gradients of its scores along their tangents, and of the values along theirs. *)
Lemma one_row i :
  Σ (c ∈ columns o) dout g i c * tangent_out x dx i c + dlse g i * tangent_lse x dx i =
  Σ (j ∈ seen o i) (ds i j * tangent_score x dx i j +
    Σ (c ∈ columns o) weight o x i j * kept o i j * dout g i c * dx (value j c)).
Proof.
  assert (E : Σ (c ∈ columns o) dout g i c * tangent_out x dx i c = Σ (j ∈ seen o i)
    (weight o x i j * grad_weight o x g i j * (tangent_score x dx i j - tangent_lse x dx i) +
     Σ (c ∈ columns o) weight o x i j * kept o i j * dout g i c * dx (value j c))).
  { unfold tangent_out; transitivity (Σ (c ∈ columns o) Σ (j ∈ seen o i) dout g i c *
      (weight o x i j * (tangent_score x dx i j - tangent_lse x dx i) * kept o i j * x (value j c)
       + weight o x i j * kept o i j * dx (value j c))); [apply sum_ext; intros; apply sum_times|].
    rewrite sum_swap; apply sum_ext; intros j _; unfold grad_weight; in_reals.
    rewrite sum_times_r, sum_times, sum_times_r, <- sum_plus; apply sum_ext; intros; algebra. }
  rewrite E; unfold tangent_lse at 2; rewrite sum_times, <- sum_plus.
  assert (F : Σ (j ∈ seen o i) weight o x i j * grad_weight o x g i j * tangent_lse x dx i =
    Σ (j ∈ seen o i) weight o x i j * delta o x g i * tangent_score x dx i j).
  { transitivity (delta o x g i * tangent_lse x dx i).
    - unfold delta; rewrite sum_times_r; apply sum_ext; intros; algebra.
    - unfold tangent_lse; rewrite sum_times; apply sum_ext; intros; algebra. }
  apply Rminus_diag_uniq; rewrite <- sum_minus.
  transitivity (Σ (j ∈ seen o i) weight o x i j * delta o x g i * tangent_score x dx i j -
    Σ (j ∈ seen o i) weight o x i j * grad_weight o x g i j * tangent_lse x dx i); [|rewrite F; algebra].
  rewrite <- sum_minus; apply sum_ext; intros; unfold ds, grad_score; algebra.
Qed.

(** One pair's part of it: what reaches query, key, the modifier's arrays and the bias. *)
Lemma one_pair i j : ds i j * tangent_score x dx i j =
  Σ (d ∈ widths o) scale o * dz i j * x (key j d) * dx (query i d) +
  Σ (d ∈ widths o) scale o * dz i j * x (query i d) * dx (key j d) +
  Σ (p ∈ entries o) ds i j * slope_in (score_mod o) (arrays x) i j (product o x i j) p * dx (array p) +
  ds i j * dx (bias (bias_at o i j)).
Proof.
  rewrite <- sum_plus; unfold tangent_score, tangent_product; rewrite !Rmult_plus_distr_l; f_equal; f_equal.
  - rewrite !sum_times; apply sum_ext; intros; unfold ds, dz, grad_product; algebra.
  - rewrite sum_times; apply sum_ext; intros; algebra.
Qed.

(** Gradients of the outputs along the tangent are gradients of the inputs along the direction. *)
Theorem backward_is_transpose : whole_bias ->
  outputs_dot g (tangent_out x dx) (tangent_lse x dx) = inputs_dot (backward o x g) dx.
Proof.
  intro W; unfold outputs_dot; rewrite inputs_dot_parts.
  transitivity (Σ (i ∈ queries o) (
    Σ (j ∈ seen o i) Σ (d ∈ widths o) scale o * dz i j * x (key j d) * dx (query i d) +
    Σ (j ∈ seen o i) Σ (d ∈ widths o) scale o * dz i j * x (query i d) * dx (key j d) +
    Σ (j ∈ seen o i) Σ (c ∈ columns o) weight o x i j * kept o i j * dout g i c * dx (value j c) +
    Σ (j ∈ seen o i) ds i j * dx (bias (bias_at o i j)) +
    Σ (j ∈ seen o i) Σ (p ∈ entries o)
      ds i j * slope_in (score_mod o) (arrays x) i j (product o x i j) p * dx (array p))).
  { apply sum_ext; intros i _; rewrite one_row, <- !sum_plus; apply sum_ext; intros j _; rewrite one_pair; algebra. }
  rewrite !sum_plus, (seen_seers (fun i j => Σ (d ∈ widths o) scale o * dz i j * x (query i d) * dx (key j d))),
    (seen_seers (fun i j => Σ (c ∈ columns o) weight o x i j * kept o i j * dout g i c * dx (value j c))),
    (gather_scatter ds (fun b => dx (bias b)) W).
  repeat apply (f_equal2 Rplus).
  - apply sum_ext; intros i _; rewrite sum_swap; apply sum_ext; intros d _; symmetry; apply sum_times_r.
  - apply sum_ext; intros j _; rewrite sum_swap; apply sum_ext; intros d _; symmetry; apply sum_times_r.
  - apply sum_ext; intros j _; rewrite sum_swap; apply sum_ext; intros c _; symmetry; apply sum_times_r.
  - reflexivity.
  - transitivity (Σ (i ∈ queries o) Σ (p ∈ entries o) Σ (j ∈ seen o i)
      ds i j * slope_in (score_mod o) (arrays x) i j (product o x i j) p * dx (array p));
      [apply sum_ext; intros; apply sum_swap|].
    rewrite sum_swap; apply sum_ext; intros p _; cbn [backward]; in_reals; rewrite sum_times_r; apply sum_ext; intros.
    symmetry; apply sum_times_r.
Qed.
End Transpose.

(** ** The backward is the gradient *)

(** What the gradients [g] of the outputs make of them: a number, as a loss is. *)
Definition loss g x : R := outputs_dot g (out o x) (lse_or_0 x).

(** Move the inputs in any way: the backward says how fast the loss moves. *)
Theorem backward_is_gradient g (x : R -> inputs) (t : R) dx : true_slopes (score_mod o) -> whole_bias ->
  moves x t dx -> is_derive (fun t => loss g (x t)) t (inputs_dot (backward o (x t) g) dx).
Proof.
  intros slopes W M; rewrite <- backward_is_transpose by easy; apply derive_sum; intros i _.
  apply (derive_plus (f := fun t => Σ (c ∈ columns o) dout g i c * out o (x t) i c)).
  - apply derive_sum; intros c _; apply (derive_scaled _ (f := fun t => out o (x t) i c)), out_moves; easy.
  - apply derive_scaled, lse_moves; easy.
Qed.

(** Move one number alone, wherever it stands: its entry of the backward is the partial derivative. *)
Theorem backward_is_partial_derivative g x (same : forall a b : place T S D V B P, {a = b} + {a <> b}) at_ :
  true_slopes (score_mod o) -> whole_bias -> NoDup places -> In at_ places ->
  is_derive (fun h : R => loss g (fun a => if same at_ a then h else x a)) (x at_) (backward o x g at_).
Proof.
  intros slopes W N I.
  set (nudged := fun (h : R) a => if same at_ a then h : reals else x a).
  set (only := fun a => if same at_ a then 1 : reals else 0 : reals).
  assert (M : moves nudged (x at_) only).
  { intro a; unfold nudged, only; destruct (same at_ a); [apply derive_same | apply derive_constant]. }
  apply (derive_eq (backward_is_gradient g slopes W M)).
  unfold inputs_dot; transitivity (backward o (nudged (x at_)) g at_).
  - transitivity (Σ (a ∈ places) if same at_ a then backward o (nudged (x at_)) g a else 0).
    + apply sum_ext; intros a _; unfold only; destruct (same at_ a); algebra.
    + exact (sum_pick same _ (fun a => backward o (nudged (x at_)) g a : R) N I).
  - replace (nudged (x at_)) with x; [reflexivity|].
    apply functional_extensionality; intro a; unfold nudged; now destruct (same at_ a) as [<-|].
Qed.

(** The same call of some queries only. *)
Definition with_queries (l : list T) : options reals T S D V B P :=
  {| queries := l; keys := keys o; widths := widths o; columns := columns o; biases := biases o; entries := entries o;
     allowed := allowed o; scale := scale o; score_mod := score_mod o; bias_at := bias_at o;
     same_bias := same_bias o; kept := kept o |}.

Lemma sum_left_out {X} (l : list X) (live : X -> bool) (f : X -> R) :
  (forall a, live a = false -> f a = 0) -> sum (filter live l) f = sum l f.
Proof. intro H; rewrite sum_filter; apply sum_ext; intros a _; destruct (live a) eqn:L; [easy | now rewrite H]. Qed.

Lemma left_out {X} (l : list X) (live p : X -> bool) (f : X -> R) :
  (forall a, live a = false -> f a = 0) -> sum (filter p (filter live l)) f = sum (filter p l) f.
Proof.
  intro H; rewrite !sum_filter; apply sum_ext; intros a _.
  destruct (live a) eqn:L; [easy|]; rewrite H by easy; now destruct (p a).
Qed.

(** A query whose results nothing reads (its gradients are 0) may be left out of the backward. *)
Theorem unread_queries_may_be_left_out x g (live : T -> bool) at_ :
  (forall i, live i = false -> (forall c, dout g i c = 0) /\ dlse g i = 0) ->
  backward (with_queries (filter live (queries o))) x g at_ = backward o x g at_.
Proof.
  intro H.
  assert (Z : forall i j, live i = false -> grad_score o x g i j = 0).
  { intros i j L; destruct (H i L) as [Hc Hl]; unfold grad_score; rewrite Hl.
    assert (W : forall k, grad_weight o x g i k = 0).
    { intro k; unfold grad_weight; rewrite sum_zero; [algebra|]; intros; rewrite Hc; algebra. }
    rewrite W; unfold delta; rewrite sum_zero; [algebra|]; intros; rewrite W; algebra. }
  destruct at_ as [i d | j d | j c | b | p].
  - reflexivity.
  - apply (left_out _ live _ (fun i => scale o * grad_product o x g i j * x (query i d))).
    intros i L; unfold grad_product; rewrite Z by easy; algebra.
  - apply (left_out _ live _ (fun i => weight o x i j * kept o i j * dout g i c)).
    intros i L; rewrite (proj1 (H i L)); algebra.
  - apply (sum_left_out _ live (fun i => Σ (j ∈ readers o i b) grad_score o x g i j)).
    intros i L; apply sum_zero; intros; now apply Z.
  - apply (sum_left_out _ live (fun i => Σ (j ∈ seen o i)
      grad_score o x g i j * slope_in (score_mod o) (arrays x) i j (product o x i j) p)).
    intros i L; apply sum_zero; intros; rewrite Z by easy; algebra.
Qed.
End Gradient.

