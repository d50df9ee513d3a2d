(** * The backward is the gradient: attention over the real numbers

    Let every input move, with a speed. [tangent_out] and [tangent_lse] are the speeds of [out] and [lse]. [backward] is
    the transpose of this map from speeds to speeds. Both together: it is the gradient. *)
From Coq Require Import FunctionalExtensionality.
From Attendax Require Import Attention Sums.
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
Proof. apply (sum_positive (X := S)); intro; apply exp_pos. Qed.
Lemma some_or_none i : seen o i = [] \/ seen o i <> [].
Proof. destruct (seen o i); [now left | now right]. Qed.
Lemma total_is x i : total o x i = sum_exp x i / exp (shift o x i).
Proof. unfold total, Rdiv; in_reals; setoid_rewrite exp_minus; symmetry; apply sum_times_r. Qed.

(** The weights of the keys that are seen are the softmax of their scores: to subtract the shift changes nothing. *)
Theorem weight_is_softmax x i j : weight o x i j = exp (score o x i j) / sum_exp x i.
Proof.
  unfold weight; rewrite total_is; in_reals; rewrite exp_minus; unfold Rdiv; rewrite Rinv_mult.
  exponentials; generalize (/ sum_exp x i); intro; fractions.
Qed.

(** The lse of a query that may look at some key is the logarithm of the sum of the exponentials of its scores. *)
Theorem lse_is_log_sum_exp x i : seen o i <> [] -> lse o x i = Some (ln (sum_exp x i)).
Proof.
  intro N; unfold lse; rewrite total_is; in_reals; exponentials; pose proof (sum_exp_positive x i N).
  rewrite ln_div, ln_exp by easy; destruct (seen o i); [easy|]; f_equal; algebra.
Qed.

(** The weights of a query that may look at some key sum to 1 (L7). *)
Theorem weights_sum_to_1 x i : seen o i <> [] -> Σ (j ∈ seen o i) weight o x i j = 1.
Proof.
  intro N; apply (sum_exp_positive x) in N; setoid_rewrite weight_is_softmax; unfold Rdiv.
  rewrite <- sum_times_r; fold (sum_exp x i); fractions.
Qed.

(** The [delta] of a row is the weighted average of the gradients of its weights. It is also dout . out. *)
Theorem delta_is_dout_out x g i : delta o x g i = Σ (c ∈ columns o) dout g i c * out o x i c.
Proof.
  unfold out; setoid_rewrite sum_times; rewrite sum_swap; apply sum_ext; intros j _.
  unfold grad_weight; in_reals; rewrite !sum_times_r; termwise.
Qed.

(** ** The tangent: with which speed out and lse move, where the inputs have the speed [dx] *)

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

(** Inputs that move, a curve [x], have the speed [dx] at time [t]: each number has its derivative. *)
Definition moves (x : R -> inputs) (t : R) dx := forall at_, is_derive (fun t => x t at_ : R) t (dx at_).

(** The derivatives that a modifier states are its true ones, however its arrays [a] and the score [z] move. *)
Definition true_slopes (m : modifier reals T S P) :=
  forall i j (a : R -> P -> R) (z : R -> R) (t : R) (da : P -> R) (dz : R),
  (forall p, is_derive (fun t => a t p) t (da p)) -> is_derive z t dz ->
  is_derive (fun t => modify m (a t) i j (z t) : R) t
    (slope m (a t) i j (z t) * dz + Σ (p ∈ entries o) slope_in m (a t) i j (z t) p * da p).

(** The lse as a real number. That of an empty row counts as 0; any constant would do. *)
Definition lse_or_0 x i : R := match lse o x i with Some r => r | None => 0 end.

Section Curve.
Context (slopes : true_slopes (score_mod o)).
Context {x : R -> inputs} {t : R} {dx : inputs} (M : forall at_, is_derive (fun t => x t at_ : R) t (dx at_)).
Lemma score_moves i j : is_derive (fun t => score o (x t) i j : R) t (tangent_score (x t) dx i j).
Proof.
  apply (derive_plus (f := fun t => modify _ _ i j _ : R)); [|apply M].
  apply (slopes i j (fun t => arrays (x t)) (z := fun t => product o (x t) i j) (fun p => dx (array p)));
    [intro; apply M|]; unfold product, tangent_product; derive_with eauto; algebra.
Qed.
Lemma sum_exp_moves i : seen o i <> [] ->
  is_derive (fun t => sum_exp (x t) i) t (sum_exp (x t) i * tangent_lse (x t) dx i).
Proof.
  intro N; apply (sum_exp_positive (x t)) in N; unfold sum_exp at 1.
  derive_with ltac:(eauto using score_moves); unfold tangent_lse; rewrite sum_times.
  apply sum_ext; intros; rewrite weight_is_softmax; fractions.
Qed.
Lemma weight_moves i j : seen o i <> [] -> is_derive (fun t => weight o (x t) i j : R) t
  (weight o (x t) i j * (tangent_score (x t) dx i j - tangent_lse (x t) dx i)).
Proof.
  intro N; pose proof (sum_exp_positive (x t) i N).
  apply (derive_ext (f := fun t => exp (score o (x t) i j) / sum_exp (x t) i)); [|intro; now rewrite weight_is_softmax].
  derive_with ltac:(eauto using score_moves, sum_exp_moves); rewrite weight_is_softmax; fractions.
Qed.

(** The lse moves as the tangent says. That of a query that may look at no key does not move. *)
Theorem lse_moves i : is_derive (fun t => lse_or_0 (x t) i) t (tangent_lse (x t) dx i).
Proof.
  unfold lse_or_0; destruct (some_or_none i) as [E|N].
  - unfold lse, tangent_lse; rewrite E; exact (derive_constant 0).
  - pose proof (sum_exp_positive (x t) i N).
    apply (derive_ext (f := fun t => ln (sum_exp (x t) i))); [|intro; now rewrite lse_is_log_sum_exp].
    derive_with ltac:(eauto using sum_exp_moves); fractions.
Qed.

(** Out moves as the tangent says, empty rows included. *)
Theorem out_moves i c : is_derive (fun t => out o (x t) i c : R) t (tangent_out (x t) dx i c).
Proof.
  unfold out, tangent_out; destruct (some_or_none i) as [E|N]; [rewrite E; exact (derive_constant 0)|].
  derive_with ltac:(eauto using weight_moves); termwise.
Qed.
End Curve.

(** ** The backward is the transpose of the tangent (L13) *)

(** All places of all inputs, and the inner products over the places of the inputs and of the outputs. *)
Definition places : list (place T S D V B P) :=
  map (fun at_ => query (fst at_) (snd at_)) (pairs (queries o) (widths o)) ++
  map (fun at_ => key (fst at_) (snd at_)) (pairs (keys o) (widths o)) ++
  map (fun at_ => value (fst at_) (snd at_)) (pairs (keys o) (columns o)) ++
  map (fun b => bias b) (biases o) ++ map (fun p => array p) (entries o).
Definition inputs_dot (x y : inputs) : R := Σ (at_ ∈ places) x at_ * y at_.
Definition outputs_dot g (dout : T -> V -> R) (dlse : T -> R) : R :=
  Σ (i ∈ queries o) (Σ (c ∈ columns o) Attention.dout g i c * dout i c + Attention.dlse g i * dlse i).

Lemma inputs_dot_parts x y : inputs_dot x y =
  Σ (i ∈ queries o) Σ (d ∈ widths o) x (query i d) * y (query i d) +
  Σ (j ∈ keys o) Σ (d ∈ widths o) x (key j d) * y (key j d) +
  Σ (p ∈ entries o) x (array p) * y (array p) + Σ (b ∈ biases o) x (bias b) * y (bias b) +
  Σ (j ∈ keys o) Σ (c ∈ columns o) x (value j c) * y (value j c).
Proof. unfold inputs_dot, places; rewrite !sum_app, !(sum_map (Y := place T S D V B P)), !sum_pairs; cbn; algebra. Qed.

(** The list of the bias names each number once, and every number that a pair reads. *)
Definition whole_bias := NoDup (biases o) /\ forall i j, In (bias_at o i j) (biases o).

(** Sum over the pairs by rows, or by columns. *)
Lemma seen_seers (f : T -> S -> R) :
  Σ (i ∈ queries o) Σ (j ∈ seen o i) f i j = Σ (j ∈ keys o) Σ (i ∈ seers o j) f i j.
Proof. unfold seen, seers; setoid_rewrite sum_filter; apply sum_swap. Qed.

(** What pairs read by [bias_at] (a gather) goes back by a sum over the readers of each number (a scatter). *)
Lemma gather_scatter (f : T -> S -> R) (r : B -> R) : whole_bias ->
  Σ (b ∈ biases o) (Σ (i ∈ queries o) Σ (j ∈ readers o i b) f i j) * r b =
  Σ (i ∈ queries o) Σ (j ∈ seen o i) f i j * r (bias_at o i j).
Proof.
  intros [N I].
  assert (E : forall i b, sum (readers o i b) (f i) =
    Σ (j ∈ seen o i) if same_bias o (bias_at o i j) b then f i j else 0).
  { intros; unfold readers; rewrite sum_filter; termwise; now destruct same_bias. }
  setoid_rewrite E; repeat setoid_rewrite sum_times_r; rewrite sum_swap; apply sum_ext; intros i _.
  rewrite sum_swap; apply sum_ext; intros j _; exact (sum_read (same_bias o) _ (f i j) r N (I i j)).
Qed.

(** The derivative of softmax, from speeds [u] of the scores to speeds of the weights, is a symmetric matrix. *)
Lemma softmax_symmetric {X} (l : list X) (p u v : X -> R) :
  Σ (j ∈ l) p j * (u j - Σ (k ∈ l) p k * u k) * v j = Σ (j ∈ l) p j * (v j - Σ (k ∈ l) v k * p k) * u j.
Proof.
  assert (expand : forall u v r, Σ (j ∈ l) p j * (u j - r) * v j = Σ (j ∈ l) p j * u j * v j - r * Σ (j ∈ l) p j * v j).
  { intros; rewrite sum_times, <- sum_minus; termwise. }
  rewrite !expand, (sum_ext l (fun k => v k * p k) (fun k => p k * v k)) by (intros; algebra).
  rewrite (sum_ext l (fun j => p j * v j * u j) (fun j => p j * u j * v j)) by (intros; algebra); algebra.
Qed.

Section Transpose.
Context (x dx : inputs) (g : cotangent).
Let ds i j : R := grad_score o x g i j.
Let dz i j : R := ds i j * slope (score_mod o) (arrays x) i j (product o x i j).

(** One query's part: the gradients of its scores times their speeds, and those of the values times theirs. *)
Lemma one_row i :
  Σ (c ∈ columns o) dout g i c * tangent_out x dx i c + dlse g i * tangent_lse x dx i =
  Σ (j ∈ seen o i) (ds i j * tangent_score x dx i j +
    Σ (c ∈ columns o) weight o x i j * kept o i j * dout g i c * dx (value j c)).
Proof.
  transitivity (Σ (j ∈ seen o i) (weight o x i j * (tangent_score x dx i j - tangent_lse x dx i) * grad_weight o x g i j
    + Σ (c ∈ columns o) weight o x i j * kept o i j * dout g i c * dx (value j c)) + dlse g i * tangent_lse x dx i).
  - apply (f_equal2 Rplus); [|reflexivity]; unfold tangent_out; setoid_rewrite sum_times; rewrite sum_swap.
    apply sum_ext; intros j _; unfold grad_weight; in_reals; rewrite sum_times_r, sum_times, <- sum_plus; termwise.
  - unfold tangent_lse; rewrite !sum_plus, softmax_symmetric, sum_times, Rplus_comm, <- Rplus_assoc, <- sum_plus.
    apply (f_equal2 Rplus); termwise; unfold ds, grad_score, delta; algebra.
Qed.

(** One pair's part: its score is moved by the query, the key, the modifier's arrays and the bias. *)
Lemma one_pair i j : ds i j * tangent_score x dx i j =
  Σ (d ∈ widths o) scale o * dz i j * x (key j d) * dx (query i d) +
  Σ (d ∈ widths o) scale o * dz i j * x (query i d) * dx (key j d) +
  Σ (p ∈ entries o) ds i j * slope_in (score_mod o) (arrays x) i j (product o x i j) p * dx (array p) +
  ds i j * dx (bias (bias_at o i j)).
Proof.
  unfold tangent_score, tangent_product; rewrite <- sum_plus, !Rmult_plus_distr_l, !sum_times; unfold dz.
  repeat apply (f_equal2 Rplus); [termwise .. | reflexivity].
Qed.

(** Gradients of the outputs times the speeds of the outputs are gradients of the inputs times those of the inputs. *)
Theorem backward_is_transpose : whole_bias ->
  outputs_dot g (tangent_out x dx) (tangent_lse x dx) = inputs_dot (backward o x g) dx.
Proof.
  intro W; unfold outputs_dot, backward; rewrite inputs_dot_parts; cbn [gradients].
  rewrite gather_scatter by easy; setoid_rewrite one_row; setoid_rewrite one_pair; repeat setoid_rewrite sum_plus.
  repeat setoid_rewrite sum_times_r; repeat apply (f_equal2 Rplus).
  - apply sum_ext; intros; apply sum_swap.
  - rewrite seen_seers; apply sum_ext; intros; apply sum_swap.
  - rewrite (sum_swap (entries o)); apply sum_ext; intros; apply sum_swap.
  - reflexivity.
  - rewrite seen_seers; apply sum_ext; intros; apply sum_swap.
Qed.
End Transpose.
(** ** The backward is the gradient *)

(** The loss: the sum of all outputs, each times its given gradient in [g]. *)
Definition loss g x : R := outputs_dot g (out o x) (lse_or_0 x).

(** Move the inputs along any curve with a speed: the backward says how fast the loss moves. *)
Theorem backward_is_gradient g (x : R -> inputs) (t : R) dx : true_slopes (score_mod o) -> whole_bias ->
  moves x t dx -> is_derive (fun t => loss g (x t)) t (inputs_dot (backward o (x t) g) dx).
Proof.
  intros slopes W M; rewrite <- backward_is_transpose by easy; unfold loss, outputs_dot.
  derive_with ltac:(eauto using out_moves, lse_moves).
  apply sum_ext; intros; apply (f_equal2 Rplus); [termwise | algebra].
Qed.

(** Move one number alone, wherever it stands: its entry of the backward is the partial derivative. *)
Theorem backward_is_partial_derivative g x (same : forall a b : place T S D V B P, {a = b} + {a <> b}) at_ :
  true_slopes (score_mod o) -> whole_bias -> NoDup places -> In at_ places ->
  is_derive (fun h : R => loss g (fun a => if same at_ a then h else x a)) (x at_) (backward o x g at_).
Proof.
  intros slopes W N I.
  set (nudged := fun (h : R) a => if same at_ a then h : reals else x a).
  assert (E : nudged (x at_) = x).
  { apply functional_extensionality; intro a; unfold nudged; now destruct (same at_ a) as [<-|]. }
  apply (derive_eq (backward_is_gradient (x := nudged) (dx := fun a => if same at_ a then 1 else 0) g slopes W
    (fun a => ltac:(unfold nudged; destruct (same at_ a); [exact derive_same | exact (derive_constant _)])))).
  rewrite E, <- (Rmult_1_l (backward o x g at_)), <- (sum_read same at_ 1 (backward o x g) N I); termwise.
Qed.

(** The same call with some queries and some keys. *)
Definition restricted (ts : list T) (ss : list S) : options reals T S D V B P :=
  {| queries := ts; keys := ss; widths := widths o; columns := columns o; biases := biases o; entries := entries o;
     allowed := allowed o; scale := scale o; score_mod := score_mod o; bias_at := bias_at o;
     same_bias := same_bias o; kept := kept o |}.

(** A query whose results nothing reads may be left out of the backward: one whose dout and dlse are 0. *)
Theorem unread_queries_may_be_left_out x g (live : T -> bool) at_ :
  (forall i, live i = false -> (forall c, dout g i c = 0) /\ dlse g i = 0) ->
  backward (restricted (filter live (queries o)) (keys o)) x g at_ = backward o x g at_.
Proof.
  intro H.
  assert (Z : forall i j, live i = false -> grad_score o x g i j = 0).
  { intros i j L; destruct (H i L) as [Hc Hl]; unfold grad_score, delta; rewrite Hl.
    assert (W : forall k, grad_weight o x g i k = 0).
    { intro k; unfold grad_weight; rewrite sum_zero; [|intros; rewrite Hc]; algebra. }
    rewrite W, sum_zero; [|intros; rewrite W]; algebra. }
  change (gradients (restricted (filter live (queries o)) (keys o)) x g (weight o x) (grad_score o x g) at_ =
    backward o x g at_).
  destruct at_ as [i d | j d | j c | b | p]; [reflexivity | ..]; cbn [backward gradients]; unfold seers;
    cbn [queries allowed restricted]; rewrite !sum_filter; apply sum_ext; intros i _;
    (destruct (live i) eqn:L; [reflexivity|]).
  - rewrite Z by easy; destruct (allowed o i j); algebra.
  - rewrite (proj1 (H i L)); destruct (allowed o i j); algebra.
  - symmetry; apply sum_zero; intros; now apply Z.
  - symmetry; apply sum_zero; intros; rewrite Z by easy; algebra.
Qed.
End Gradient.
