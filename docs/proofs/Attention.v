(** * Attention, forward and backward, over numbers of any kind

    The definitions follow [attendax.spec.attention] and [attention_backward] step by step. No law of arithmetic is
    assumed in this file, so IEEE floats are numbers as well, with their NaN and their rounding. What is proved here
    holds for them bit by bit, and needs no axiom. *)
From Coq Require Import List.
Import ListNotations.
Set Implicit Arguments.
Set Contextual Implicit.

(** ** Numbers and sums *)

(** A kind of numbers: what can be computed, and nothing about what comes out. *)
Record arithmetic := {
  number :> Type; zero : number; one : number;
  add : number -> number -> number; sub : number -> number -> number;
  mul : number -> number -> number; div : number -> number -> number;
  maximum : number -> number -> number;
  e_to : number -> number; log : number -> number; tanh_of : number -> number; root : number -> number }.

Declare Scope number_scope.
Delimit Scope number_scope with number.
Infix "+" := (add _) : number_scope.
Infix "-" := (sub _) : number_scope.
Infix "*" := (mul _) : number_scope.
Infix "/" := (div _) : number_scope.

(** The sum of [f] over a list, from the right; 0 for the empty list. *)
Fixpoint sum {A : arithmetic} {X : Type} (l : list X) (f : X -> A) : A :=
  match l with [] => zero A | a :: l => add A (f a) (sum l f) end.
Notation "'Σ' ( i '∈' l ) f" := (sum l (fun i => f)) (at level 41, i name, l at level 99, f at level 41,
  right associativity, format "'Σ' ( i  '∈'  l )  f").

(** The largest [f] of a list; 0 for the empty list. *)
Fixpoint largest {A : arithmetic} {X : Type} (l : list X) (f : X -> A) : A :=
  match l with [] => zero A | [a] => f a | a :: l => maximum A (f a) (largest l f) end.

Lemma sum_ext {A : arithmetic} {X} (l : list X) (f g : X -> A) :
  (forall a, In a l -> f a = g a) -> sum l f = sum l g.
Proof.
  induction l as [|a l IH]; intro H; [reflexivity|]; cbn.
  rewrite (H a (or_introl eq_refl)), IH; [reflexivity|]; intros; apply H; now right.
Qed.

Lemma largest_ext {A : arithmetic} {X} (l : list X) (f g : X -> A) :
  (forall a, In a l -> f a = g a) -> largest l f = largest l g.
Proof.
  induction l as [|a l IH]; intro H; [reflexivity|]; cbn.
  rewrite (H a (or_introl eq_refl)), IH; [reflexivity|]; intros; apply H; now right.
Qed.

(** ** Attention

    The axes have the letters of the laws: T queries, S keys, D width of query and key, V width of value; and B for the
    numbers of the bias, P for those in the arrays of the score modifier. Each is any type. Batch and heads have no
    axis: let a query be a triple (batch, head, position), a key a triple (batch, key head, position), and let a query
    be allowed only the keys of its own batch and its own key head (L1). *)
Section Attention.
Context (A : arithmetic) (T S D V B P : Type).

(** The place of one number among all inputs. *)
Inductive place := query (i : T) (d : D) | key (j : S) (d : D) | value (j : S) (c : V) | bias (b : B) | array (p : P).

(** The inputs: a number at each place. Their gradients are of the same kind, and so are directions. *)
Definition inputs := place -> A.

(** A score modifier (L2): how it changes the score [z] of query [i] and key [j], where its arrays hold the numbers
    [a]; its derivative in [z]; and its derivative in each of these numbers. *)
Record modifier := {
  modify : (P -> A) -> T -> S -> A -> A;
  slope : (P -> A) -> T -> S -> A -> A;
  slope_in : (P -> A) -> T -> S -> A -> P -> A }.

Record options := {
  queries : list T; keys : list S; widths : list D; columns : list V; biases : list B; entries : list P;
  allowed : T -> S -> bool;                    (* the mask: true = may look (L3); false as well where a bias is -inf *)
  scale : A;
  score_mod : modifier;
  bias_at : T -> S -> B;                       (* which number of the bias a pair reads; one may serve many pairs *)
  same_bias : forall a b : B, {a = b} + {a <> b};
  kept : T -> S -> A }.                        (* dropout: 0, or 1 / (1 - rate); 1 without dropout (L10) *)
Arguments same_bias : clear implicits.

Context (o : options) (x : inputs).
Local Open Scope number_scope.

(** *** Forward *)

Definition seen (i : T) : list S := filter (allowed o i) (keys o).
Definition arrays : P -> A := fun p => x (array p).
Definition product i j := scale o * Σ (d ∈ widths o) x (query i d) * x (key j d).              (* z = scale q k *)
Definition score i j := modify (score_mod o) arrays i j (product i j) + x (bias (bias_at o i j)).  (* s = mod(z) + b *)
Definition shift i := largest (seen i) (score i).
Definition total i := Σ (j ∈ seen i) e_to A (score i j - shift i).
Definition weight i j := e_to A (score i j - shift i) / total i.                               (* p = softmax(s) *)
Definition out i c := Σ (j ∈ seen i) weight i j * kept o i j * x (value j c).                  (* out = w v *)
Definition lse i := match seen i with [] => None | _ => Some (shift i + log A (total i)) end.  (* None is -inf (L5) *)

(** *** Backward: from gradients of [out] and [lse] to those of the inputs *)

Record cotangent := { dout : T -> V -> A; dlse : T -> A }.
Context (g : cotangent).

Definition seers (j : S) : list T := filter (fun i => allowed o i j) (queries o).
Definition readers i (b : B) : list S :=
  filter (fun j => if same_bias o (bias_at o i j) b then true else false) (seen i).
Definition grad_weight i j := (Σ (c ∈ columns o) dout g i c * x (value j c)) * kept o i j.     (* dp = dw kept *)
Definition delta i := Σ (j ∈ seen i) grad_weight i j * weight i j.
Definition grad_score i j := weight i j * (grad_weight i j - delta i) + weight i j * dlse g i. (* ds *)
Definition grad_product i j := grad_score i j * slope (score_mod o) arrays i j (product i j).  (* dz = ds mod'(z) *)
Definition backward : inputs := fun at_ =>
  match at_ with
  | query i d => Σ (j ∈ seen i) scale o * grad_product i j * x (key j d)
  | key j d => Σ (i ∈ seers j) scale o * grad_product i j * x (query i d)
  | value j c => Σ (i ∈ seers j) weight i j * kept o i j * dout g i c
  | bias b => Σ (i ∈ queries o) Σ (j ∈ readers i b) grad_score i j
  | array p => Σ (i ∈ queries o) Σ (j ∈ seen i) grad_score i j * slope_in (score_mod o) arrays i j (product i j) p
  end.
End Attention.
Arguments same_bias {A T S D V B P} o a b.

(** ** L5: the empty set *)

Section Laws.
Context {A : arithmetic} {T S D V B P : Type} (o : options A T S D V B P).
Notation inputs := (inputs A T S D V B P).
Implicit Types (x y : inputs) (g : cotangent A T V).

(** A query that may look at no key gets out 0 and lse -inf, and its gradient is 0. *)
Theorem nothing_to_see x g i : seen o i = [] ->
  (forall c, out o x i c = zero A) /\ lse o x i = None /\ (forall d, backward o x g (query i d) = zero A).
Proof. intro E; unfold out, lse; cbn; rewrite E; repeat split. Qed.

(** A key that no query may look at has gradient 0, and so has its value. *)
Theorem nobody_sees x g j : seers o j = [] ->
  (forall d, backward o x g (key j d) = zero A) /\ (forall c, backward o x g (value j c) = zero A).
Proof. intro E; cbn; rewrite E; split; reflexivity. Qed.

(** ** L6: what is masked cannot matter *)

(** The inputs agree wherever a query may look at a key, and hold the same arrays of the modifier. Elsewhere each may
    hold anything: a NaN, or 1e30. *)
Definition agree x y := arrays x = arrays y /\
  forall i j, In i (queries o) -> In j (keys o) -> allowed o i j = true ->
    (forall d, x (query i d) = y (query i d)) /\ (forall d, x (key j d) = y (key j d)) /\
    (forall c, x (value j c) = y (value j c)) /\ x (bias (bias_at o i j)) = y (bias (bias_at o i j)).

Context {x y : inputs} (same : agree x y).

Lemma in_seen i j : In j (seen o i) <-> In j (keys o) /\ allowed o i j = true.
Proof. apply filter_In. Qed.

Lemma in_seers i j : In i (seers o j) <-> In i (queries o) /\ allowed o i j = true.
Proof. unfold seers; apply (filter_In (fun i => allowed o i j)). Qed.

Lemma same_product i j : In i (queries o) -> In j (seen o i) -> product o x i j = product o y i j.
Proof.
  intros Hi Hj; apply in_seen in Hj; destruct (proj2 same i j Hi) as (Q & K & _); try easy.
  unfold product; f_equal; apply sum_ext; intros d _; now rewrite Q, K.
Qed.

Lemma same_score i j : In i (queries o) -> In j (seen o i) -> score o x i j = score o y i j.
Proof.
  intros Hi Hj; unfold score; rewrite (proj1 same), same_product by easy; apply in_seen in Hj.
  now destruct (proj2 same i j Hi) as (_ & _ & _ & ->).
Qed.

Lemma same_shift i : In i (queries o) -> shift o x i = shift o y i.
Proof. intro Hi; apply largest_ext; intros; now apply same_score. Qed.

Lemma same_total i : In i (queries o) -> total o x i = total o y i.
Proof. intro Hi; apply sum_ext; intros; now rewrite same_score, same_shift. Qed.

Lemma same_weight i j : In i (queries o) -> In j (seen o i) -> weight o x i j = weight o y i j.
Proof. intros; unfold weight; now rewrite same_score, same_shift, same_total. Qed.

(** Forward: no bit of out or lse of any query depends on what is masked. *)
Theorem masked_cannot_matter i : In i (queries o) -> (forall c, out o x i c = out o y i c) /\ lse o x i = lse o y i.
Proof.
  intro Hi; split.
  - intro c; apply sum_ext; intros j Hj; rewrite same_weight by easy; apply in_seen in Hj.
    now destruct (proj2 same i j Hi) as (_ & _ & -> & _).
  - unfold lse; destruct (seen o i); [reflexivity|]; now rewrite same_total, same_shift.
Qed.

Lemma same_grad_weight g i j : In i (queries o) -> In j (seen o i) -> grad_weight o x g i j = grad_weight o y g i j.
Proof.
  intros Hi Hj; apply in_seen in Hj; unfold grad_weight; f_equal; apply sum_ext; intros c _.
  now destruct (proj2 same i j Hi) as (_ & _ & -> & _).
Qed.

Lemma same_grad_score g i j : In i (queries o) -> In j (seen o i) -> grad_score o x g i j = grad_score o y g i j.
Proof.
  intros Hi Hj; unfold grad_score, delta; rewrite same_weight, same_grad_weight by easy; f_equal; f_equal; f_equal.
  apply sum_ext; intros; now rewrite same_weight, same_grad_weight.
Qed.

Lemma same_grad_product g i j : In i (queries o) -> In j (seen o i) -> grad_product o x g i j = grad_product o y g i j.
Proof. intros; unfold grad_product; now rewrite same_grad_score, same_product, (proj1 same). Qed.

(** The places that queries and keys of this call have. *)
Definition of_this_call (at_ : place T S D V B P) :=
  match at_ with query i _ => In i (queries o) | key j _ | value j _ => In j (keys o) | _ => True end.

(** Backward: no bit of any gradient depends on what is masked. *)
Theorem masked_cannot_matter_backward g at_ : of_this_call at_ -> backward o x g at_ = backward o y g at_.
Proof.
  assert (turned : forall i j, In j (keys o) -> In i (seers o j) -> In i (queries o) /\ In j (seen o i)).
  { intros i j Hj Hi; apply in_seers in Hi; split; [|apply in_seen]; easy. }
  destruct at_ as [i d | j d | j c | b | p]; cbn; intro H; apply sum_ext.
  - intros j Hj; rewrite same_grad_product by easy; apply in_seen in Hj.
    now destruct (proj2 same i j H) as (_ & -> & _).
  - intros i Hi; destruct (turned i j H Hi) as [Ti Sj]; rewrite same_grad_product by easy; apply in_seen in Sj.
    now destruct (proj2 same i j) as (-> & _).
  - intros i Hi; destruct (turned i j H Hi); now rewrite same_weight.
  - intros i Hi; apply sum_ext; intros j Hj; apply filter_In in Hj; now apply same_grad_score.
  - intros i Hi; apply sum_ext; intros j Hj; now rewrite same_grad_score, same_product, (proj1 same).
Qed.
End Laws.
