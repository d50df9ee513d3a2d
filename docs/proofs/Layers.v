(** * An encoder block: layers with weights, put together by the chain rule *)
From Attendax Require Import Attention Sums Gradient Modifiers.
Set Implicit Arguments.
Set Contextual Implicit.

(** ** Layers, over numbers of any kind *)

(** A layer has weights [W], an input [X] and an output [Y], each a number at every place. Its backward takes the
    gradient of the output to that of the weights and to that of the input. *)
Record layer (A : arithmetic) (W X Y : Type) := {
  forward : (W -> A) -> (X -> A) -> (Y -> A);
  to_weights : (W -> A) -> (X -> A) -> (Y -> A) -> (W -> A);
  to_input : (W -> A) -> (X -> A) -> (Y -> A) -> (X -> A) }.

Section Layers.
Context (A : arithmetic).
Local Open Scope number_scope.

Definition no_weights : Empty_set -> A := fun a => match a with end.
Definition left {W W' : Type} (w : W + W' -> A) : W -> A := fun a => w (inl a).
Definition right {W W' : Type} (w : W + W' -> A) : W' -> A := fun a => w (inr a).

(** One layer after another. *)
Definition after {W W' X Y Z} (f : layer A W X Y) (h : layer A W' Y Z) : layer A (W + W') X Z :=
  let y w x := forward f (left w) x in
  let dy w x g := to_input h (right w) (y w x) g in
  {| forward w x := forward h (right w) (y w x);
     to_weights w x g a :=
       match a with inl a => to_weights f (left w) x (dy w x g) a | inr a => to_weights h (right w) (y w x) g a end;
     to_input w x g := to_input f (left w) x (dy w x g) |}.

(** A residual, [x + f(x)]: the gradient goes around and through. *)
Definition residual {W X} (f : layer A W X X) : layer A W X X :=
  {| forward w x a := x a + forward f w x a;
     to_weights w x g := to_weights f w x g;
     to_input w x g a := g a + to_input f w x g a |}.

(** Two layers that read the same input: its gradients add up. *)
Definition fork {W W' X Y Z} (f : layer A W X Y) (h : layer A W' X Z) : layer A (W + W') X (Y + Z) :=
  {| forward w x a := match a with inl a => forward f (left w) x a | inr a => forward h (right w) x a end;
     to_weights w x g a :=
       match a with inl a => to_weights f (left w) x (left g) a | inr a => to_weights h (right w) x (right g) a end;
     to_input w x g a := to_input f (left w) x (left g) a + to_input h (right w) x (right g) a |}.

(** A layer that acts on every token alone: the gradients of its weights sum over the tokens. *)
Definition tokenwise {K W X Y} (tokens : list K) (f : layer A W X Y) : layer A W (K * X) (K * Y) :=
  let at_ {Z} (z : K * Z -> A) t := fun a => z (t, a) in
  {| forward w x a := forward f w (at_ x (fst a)) (snd a);
     to_weights w x g a := Σ (t ∈ tokens) to_weights f w (at_ x t) (at_ g t) a;
     to_input w x g a := to_input f w (at_ x (fst a)) (at_ g (fst a)) (snd a) |}.

(** Numbers are moved to other places, and their gradients are moved back. *)
Definition rearrange {X Y} (from : Y -> X) (back : X -> Y) : layer A Empty_set X Y :=
  {| forward _ x a := x (from a); to_weights _ _ _ := no_weights; to_input _ _ g a := g (back a) |}.

(** [y = x W + b]. *)
Inductive affine_place (X Y : Type) := matrix (a : X) (b : Y) | offset (b : Y).
Definition affine {X Y} (inputs : list X) (outputs : list Y) : layer A (affine_place X Y) X Y :=
  {| forward w x b := Σ (a ∈ inputs) x a * w (matrix a b) + w (offset b);
     to_weights _ x g p := match p with matrix a b => x a * g b | offset b => g b end;
     to_input w _ g a := Σ (b ∈ outputs) g b * w (matrix a b) |}.

(** [f] of each number. Its backward multiplies by [slope], which is meant to be the derivative of [f]. *)
Definition activation {X} (f slope : A -> A) : layer A Empty_set X X :=
  {| forward _ x a := f (x a); to_weights _ _ _ := no_weights; to_input _ x g a := g a * slope (x a) |}.

(** Softmax of a whole row. *)
Definition softmax {X} (places : list X) : layer A Empty_set X X :=
  let p x a := e_to A (x a - largest places x) / Σ (b ∈ places) e_to A (x b - largest places x) in
  {| forward _ x := p x;
     to_weights _ _ _ := no_weights;
     to_input _ x g a := p x a * (g a - Σ (b ∈ places) g b * p x b) |}.

(** Layer norm of a token, [gamma (x - mean) / sqrt(var + eps) + beta]. *)
Inductive norm_place (X : Type) := gamma (a : X) | beta (a : X).
Definition mean {X} (places : list X) (f : X -> A) : A := sum places f / Σ (_ ∈ places) one A.
Definition layer_norm {X} (places : list X) (eps : A) : layer A (norm_place X) X X :=
  let centred x a := x a - mean places x in
  let deviation x := root A (mean places (fun a => centred x a * centred x a) + eps) in
  let normal x a := centred x a / deviation x in
  let inner (w : norm_place X -> A) (g : X -> A) a := g a * w (gamma a) in
  {| forward w x a := w (gamma a) * normal x a + w (beta a);
     to_weights _ x g p := match p with gamma a => g a * normal x a | beta a => g a end;
     to_input w x g a :=
       (inner w g a - mean places (inner w g) - normal x a * mean places (fun b => inner w g b * normal x b))
       / deviation x |}.

(** ** The block, as in [spec.encoder_block] *)

Definition lefts_rights {X Y} (xs : list X) (ys : list Y) : list (X + Y) :=
  map (fun a => inl a) xs ++ map (fun b => inr b) ys.
Definition same_unit (a b : unit) : {a = b} + {a <> b} := match a, b with tt, tt => Specif.left eq_refl end.

(** Tokens [K] of all the batch, heads [H], width of a head [D], model width [M], hidden width [F]. Queries and keys are
    pairs of a token and a head. The mask [allowed] is meant to keep the heads apart, and the examples of a batch; the
    theorems hold for any. There is no modifier and no dropout, and the bias of the scores is 0. *)
Section Block.
Context {K H D M F : Type} (tokens : list K) (heads : list H) (widths : list D) (model : list M) (hidden : list F).
Context (allowed : K * H -> K * H -> bool) (scale eps : A) (f slope : A -> A).

Definition heads_options : options A (K * H) (K * H) D D unit Empty_set := {|
  queries := pairs tokens heads; keys := pairs tokens heads; Attention.widths := widths; columns := widths;
  biases := [tt]; entries := []; Attention.allowed := allowed;
  Attention.scale := scale; score_mod := no_modifier A (K * H) (K * H) Empty_set;
  bias_at _ _ := tt; same_bias := @same_unit; kept _ _ := one A |}.

(** Query, key and value of a token, side by side; and as inputs of attention, with a bias of 0. *)
Definition projected : Type := (H * D) + ((H * D) + (H * D)).
Definition as_inputs (x : K * projected -> A) : inputs A (K * H) (K * H) D D unit Empty_set := fun at_ =>
  match at_ with
  | query i d => x (fst i, inl (snd i, d))
  | key j d => x (fst j, inr (inl (snd j, d)))
  | value j d => x (fst j, inr (inr (snd j, d)))
  | bias _ => zero A
  | array p => match p with end
  end.
Definition attend : layer A Empty_set (K * projected) ((K * H) * D) :=
  {| forward _ x a := out heads_options (as_inputs x) (fst a) (snd a);
     to_weights _ _ _ := no_weights;
     to_input _ x g a :=
       backward heads_options (as_inputs x) {| dout i d := g (i, d); dlse _ := zero A |}
         match a with
         | (t, inl (h, d)) => query (t, h) d
         | (t, inr (inl (h, d))) => key (t, h) d
         | (t, inr (inr (h, d))) => value (t, h) d
         end |}.

(** Multi-head self-attention: project, attend in every head, put the heads side by side, project again. *)
Definition columns_of_heads := pairs heads widths.
Definition project := affine model columns_of_heads.
Definition self_attention :=
  after (after (after (tokenwise tokens (fork project (fork project project))) attend)
    (rearrange (fun a => (fst a, fst (snd a), snd (snd a))) (fun a => (fst (fst a), (snd (fst a), snd a)))))
    (tokenwise tokens (affine columns_of_heads model)).

(** The feed-forward network: two affine maps, and between them [f] of each number. *)
Definition feed_forward :=
  tokenwise tokens (after (after (affine model hidden) (activation f slope)) (affine hidden model)).
Definition norm := tokenwise tokens (layer_norm model eps).

(** The norm first: h = x + A(N1(x)), y = h + F(N2(h)). *)
Definition encoder_block_pre := after (residual (after norm self_attention)) (residual (after norm feed_forward)).

(** The norm last: h = N1(x + A(x)), y = N2(h + F(h)). *)
Definition encoder_block_post := after (after (residual self_attention) norm) (after (residual feed_forward) norm).
End Block.
End Layers.
Arguments left {A W W'} w a.
Arguments right {A W W'} w a.

(** ** Over the reals: the backward of each layer, and of what is put together from layers, is its gradient *)

Local Open Scope R_scope.

(** Numbers that move have the speed [dx] at time [t]. *)
Definition moving {X} (x : R -> X -> R) (t : R) (dx : X -> R) := forall a, is_derive (fun t => x t a) t (dx a).

(** A backward is right: where weights and input have speeds, the output has a speed [dy], too; and gradients [g] of the
    output times [dy] are the gradients of weights and input times their speeds. *)
Definition right_backward {W X Y} (ws : list W) (xs : list X) (ys : list Y) (f : layer reals W X Y) :=
  forall (w : R -> W -> R) (x : R -> X -> R) t dw dx, moving w t dw -> moving x t dx ->
  exists dy, moving (fun t => forward f (w t) (x t)) t dy /\ forall g : Y -> R,
    Σ (a ∈ ys) g a * dy a =
    Σ (a ∈ ws) to_weights f (w t) (x t) g a * dw a + Σ (a ∈ xs) to_input f (w t) (x t) g a * dx a.

Lemma sum_lefts_rights {X Y} (xs : list X) (ys : list Y) (f : X + Y -> R) :
  sum (lefts_rights xs ys) f = Σ (a ∈ xs) f (inl a) + Σ (b ∈ ys) f (inr b).
Proof. unfold lefts_rights; now rewrite sum_app, !(sum_map (Y := X + Y)). Qed.

Lemma sum_squares {X} (l : list X) (f : X -> R) : 0 <= Σ (a ∈ l) f a * f a.
Proof. induction l as [|a l IH]; cbn [sum]; [|pose proof (Rle_0_sqr (f a)); unfold Rsqr in *]; in_reals; lra. Qed.

Section Right.
Context {W W' X Y Z K : Type} {ws : list W} {ws' : list W'} {xs : list X} {ys : list Y} {zs : list Z}.
Context (tokens : list K).

(** The chain rule: one layer after another is right if both are. *)
Theorem after_is_right (f : layer reals W X Y) (h : layer reals W' Y Z) :
  right_backward ws xs ys f -> right_backward ws' ys zs h ->
  right_backward (lefts_rights ws ws') xs zs (after f h).
Proof.
  intros F H w x t dw dx Mw Mx.
  destruct (F (fun t => left (w t)) x t (fun a => dw (inl a)) dx) as (dy & My & Fy); try easy; [intro; apply Mw|].
  destruct (H (fun t => right (w t)) (fun t => forward f (left (w t)) (x t)) t (fun a => dw (inr a)) dy)
    as (dz & Mz & Hz); try easy; [intro; apply Mw|].
  exists dz; split; [exact Mz|]; intro g.
  rewrite Hz, Fy, sum_lefts_rights, <- Rplus_assoc, (Rplus_comm (sum ws' _)); reflexivity.
Qed.

(** A residual is right if its layer is. *)
Theorem residual_is_right (f : layer reals W X X) : right_backward ws xs xs f -> right_backward ws xs xs (residual f).
Proof.
  intros F w x t dw dx Mw Mx; destruct (F w x t dw dx Mw Mx) as (dy & My & Fy).
  exists (fun a => dx a + dy a); split; [intro a; apply (derive_plus (Mx a) (My a))|]; intro g; cbn; in_reals.
  setoid_rewrite Rmult_plus_distr_l; setoid_rewrite Rmult_plus_distr_r; rewrite !sum_plus, Fy; algebra.
Qed.

(** Two layers that read the same input are right if each is. *)
Theorem fork_is_right (f : layer reals W X Y) (h : layer reals W' X Z) :
  right_backward ws xs ys f -> right_backward ws' xs zs h ->
  right_backward (lefts_rights ws ws') xs (lefts_rights ys zs) (fork f h).
Proof.
  intros F H w x t dw dx Mw Mx.
  destruct (F (fun t => left (w t)) x t (fun a => dw (inl a)) dx) as (dy & My & Fy); try easy; [intro; apply Mw|].
  destruct (H (fun t => right (w t)) x t (fun a => dw (inr a)) dx) as (dz & Mz & Hz); try easy; [intro; apply Mw|].
  exists (fun a => match a with inl a => dy a | inr a => dz a end); split; [intros [a|a]; [apply My | apply Mz]|].
  intro g; rewrite !sum_lefts_rights; cbn; in_reals; setoid_rewrite Rmult_plus_distr_r; rewrite sum_plus.
  specialize (Fy (left g)); specialize (Hz (right g)); unfold left, right in *; rewrite Fy, Hz; algebra.
Qed.

(** A layer on every token is right if the layer is. *)
Theorem tokenwise_is_right (f : layer reals W X Y) :
  right_backward ws xs ys f -> right_backward ws (pairs tokens xs) (pairs tokens ys) (tokenwise tokens f).
Proof.
  intros F w x t dw dx Mw Mx.
  set (token := fun k t a => x t (k, a)).
  set (dy := fun k a => Derive (fun t => forward f (w t) (token k t) a) t).
  assert (E : forall k, moving (fun t => forward f (w t) (token k t)) t (dy k) /\ forall g : Y -> R,
    Σ (a ∈ ys) g a * dy k a = Σ (a ∈ ws) to_weights f (w t) (token k t) g a * dw a
      + Σ (a ∈ xs) to_input f (w t) (token k t) g a * dx (k, a)).
  { intro k; destruct (F w (token k) t dw (fun a => dx (k, a))) as (d & M & Q); [exact Mw | intro; apply Mx|].
    assert (U : forall a, dy k a = d a) by (intro; apply is_derive_unique, M).
    split; [intro a; rewrite U; apply M|]; intro g; rewrite <- Q; apply sum_ext; intros; now rewrite U. }
  exists (fun a => dy (fst a) (snd a)); split; [intros [k a]; apply E|]; intro g.
  rewrite !sum_pairs; cbn; setoid_rewrite sum_times_r; rewrite (sum_swap ws), <- sum_plus.
  apply sum_ext; intros k _; exact (proj2 (E k) (fun a => g (k, a))).
Qed.

(** Numbers moved to other places are right if [back] undoes [from] and both lists name the same places. *)
Theorem rearrange_is_right (from : Y -> X) (back : X -> Y) : (forall a, back (from a) = a) ->
  (forall f : X -> R, Σ (a ∈ ys) f (from a) = sum xs f) -> right_backward [] xs ys (rearrange from back).
Proof.
  intros E L w x t dw dx _ Mx; exists (fun a => dx (from a)); split; [intro a; apply Mx|]; intro g; cbn.
  rewrite <- L, Rplus_0_l; apply sum_ext; intros a _; now rewrite E.
Qed.

(** The affine map [y = x W + b]. *)
Theorem affine_is_right :
  right_backward (map (fun p => matrix (fst p) (snd p)) (pairs xs ys) ++ map (fun b => offset b) ys) xs ys
    (affine xs ys).
Proof.
  intros w x t dw dx Mw Mx; cbn.
  exists (fun b => Σ (a ∈ xs) (dx a * w t (matrix a b) + x t a * dw (matrix a b)) + dw (offset b)); split.
  - intro b; cbn; derive_with eauto; reflexivity.
  - intro g; rewrite sum_app, !(sum_map (Y := affine_place X Y)), sum_pairs; cbn; in_reals.
    setoid_rewrite Rmult_plus_distr_l; setoid_rewrite sum_times; setoid_rewrite sum_times_r; rewrite sum_plus.
    rewrite (sum_swap ys xs), Rplus_assoc, (Rplus_comm (sum ys _)), <- Rplus_assoc, <- sum_plus.
    apply (f_equal2 Rplus); [apply sum_ext; intros; rewrite <- sum_plus; termwise | reflexivity].
Qed.

(** A function of each number, if [slope] is its derivative everywhere (ReLU has none at 0). *)
Theorem activation_is_right (f slope : R -> R) : (forall z, is_derive f z (slope z)) ->
  right_backward [] xs xs (activation f slope).
Proof.
  intros S w x t dw dx _ Mx; exists (fun a => slope (x t a) * dx a); split; [intro a; apply (derive_of (S _) (Mx a))|].
  intro g; cbn; rewrite Rplus_0_l; termwise.
Qed.

(** Softmax of a row that is not empty. *)
Theorem softmax_is_right : xs <> [] -> right_backward [] xs xs (softmax xs).
Proof.
  intros N w x t dw dx _ Mx; set (p := fun (x : X -> R) a => exp (x a) / Σ (b ∈ xs) exp (x b)).
  assert (Q : forall x : X -> R, 0 < Σ (b ∈ xs) exp (x b)) by (intro; apply sum_positive; auto using exp_pos).
  assert (E : forall (x : X -> R) a, forward (softmax xs) (w t) x a = p x a).
  { intros y a; cbn; pose proof (exp_pos (- largest xs y)); specialize (Q y); unfold Rminus.
    setoid_rewrite exp_plus; rewrite <- sum_times_r; unfold p; fractions. }
  exists (fun a => p (x t) a * (dx a - Σ (b ∈ xs) p (x t) b * dx b)); split.
  - intro a; apply (derive_ext (f := fun t => p (x t) a)); [|intro; symmetry; apply E]; specialize (Q (x t)); unfold p.
    derive_with eauto; rewrite (sum_ext xs (fun b => exp (x t b) / _ * dx b)
      (fun b => / (Σ (b ∈ xs) exp (x t b)) * (exp (x t b) * dx b))) by (intros; unfold Rdiv; algebra).
    rewrite <- sum_times; fractions.
  - intro g; cbn [sum]; rewrite Rplus_0_l.
    transitivity (Σ (a ∈ xs) p (x t) a * (dx a - Σ (b ∈ xs) p (x t) b * dx b) * g a); [termwise|].
    rewrite softmax_symmetric; apply sum_ext; intros a _; apply (f_equal2 Rmult); [|reflexivity].
    change (p (x t) a * (g a - Σ (b ∈ xs) g b * p (x t) b) = forward (softmax xs) (w t) (x t) a
      * (g a - Σ (b ∈ xs) g b * forward (softmax xs) (w t) (x t) b)).
    rewrite E; do 2 f_equal; apply sum_ext; intros; now rewrite E.
Qed.

(** Layer norm, of a width above 0 and with eps above 0. An input acts in three ways: itself, through the mean, and
    through the deviation. *)
Theorem layer_norm_is_right (eps : R) : xs <> [] -> 0 < eps ->
  right_backward (map (fun a => gamma a) xs ++ map (fun a => beta a) xs) xs xs (layer_norm xs eps).
Proof.
  intros N P w x t dw dx Mw Mx; set (n := Σ (_ ∈ xs) 1).
  assert (Q : 0 < n) by (apply sum_positive; [intro; exact Rlt_0_1 | easy]).
  set (c := fun t a => x t a - sum xs (x t) / n); set (dc := fun a => dx a - sum xs dx / n).
  set (variance := fun t => (Σ (a ∈ xs) c t a * c t a) / n + eps); set (s := sqrt (variance t)).
  assert (V : 0 < variance t).
  { unfold variance; pose proof (sum_squares xs (c t)).
    assert (0 <= (Σ (a ∈ xs) c t a * c t a) / n) by (apply Rdiv_le_0_compat; lra); lra. }
  assert (positive : 0 < s) by now apply sqrt_lt_R0.
  set (ds := (Σ (a ∈ xs) c t a * dc a) / n / s).
  assert (Mc : forall a, is_derive (fun t => c t a) t (dc a)) by (intro; unfold c, dc; derive_with eauto; fractions).
  assert (Mv : is_derive variance t (2 * s * ds)).
  { unfold variance; derive_with eauto; unfold ds.
    rewrite (sum_ext xs (fun a => dc a * c t a + c t a * dc a) (fun a => 2 * (c t a * dc a))) by (intros; algebra).
    rewrite <- sum_times; fractions. }
  assert (Ms : is_derive (fun t => sqrt (variance t)) t ds).
  { eapply derive_eq; [apply (is_derive_sqrt _ _ _ Mv V)|]; fold s; fractions. }
  exists (fun a => dw (gamma a) * (c t a / s) + w t (gamma a) * ((dc a * s - c t a * ds) / s ^ 2) + dw (beta a)); split.
  - intro a.
    apply (derive_ext (f := fun t => w t (gamma a) * (c t a / sqrt (variance t)) + w t (beta a))); [|reflexivity].
    derive_with ltac:(first [exact Ms | eauto]); fold s; [lra | fractions].
  - intro g; rewrite sum_app, !(sum_map (Y := norm_place X)).
    set (inner := fun a => g a * w t (gamma a)).
    assert (F : forall a, to_input (layer_norm xs eps) (w t) (x t) g a =
      (inner a - sum xs inner / n - c t a / s * ((Σ (b ∈ xs) inner b * (c t b / s)) / n)) / s) by reflexivity.
    assert (I : Σ (b ∈ xs) inner b * (c t b / s) = (Σ (b ∈ xs) inner b * c t b) / s).
    { unfold Rdiv; rewrite sum_times_r; termwise. }
    assert (O : sum xs (c t) = 0).
    { assert (constant : forall r : R, Σ (_ ∈ xs) r = r * n) by (intro; unfold n; rewrite sum_times; termwise).
      unfold c; rewrite sum_minus, constant; fractions. }
    assert (D : Σ (a ∈ xs) c t a * dc a = Σ (a ∈ xs) c t a * dx a).
    { rewrite (sum_ext xs (fun a => c t a * dc a) (fun a => c t a * dx a - sum xs dx / n * c t a))
        by (intros; unfold dc; algebra).
      rewrite sum_minus, <- sum_times, O; algebra. }
    transitivity (Σ (a ∈ xs) g a * (c t a / s) * dw (gamma a) + Σ (a ∈ xs) g a * dw (beta a)
      + Σ (a ∈ xs) inner a * ((dc a * s - c t a * ds) / s ^ 2)).
    { rewrite <- !sum_plus; termwise; unfold inner; algebra. }
    apply (f_equal2 Rplus); [reflexivity|].
    rewrite (sum_ext xs (fun a => inner a * _) (fun a => / s * (inner a * dx a) - sum xs dx / n / s * inner a
      - ds / s ^ 2 * (inner a * c t a))) by (intros; unfold dc; fractions).
    rewrite (sum_ext xs (fun a => to_input _ _ _ _ a * dx a) (fun a => / s * (inner a * dx a)
      - sum xs inner / n / s * dx a - (Σ (b ∈ xs) inner b * c t b) / s / n / s / s * (c t a * dx a)))
      by (intros; rewrite F, I; fractions).
    rewrite !sum_minus, <- !sum_times; unfold ds; rewrite D; fractions.
Qed.
End Right.

(** ** The block *)

Section BlockIsRight.
Context {K H D M F : Type} (tokens : list K) (heads : list H) (widths : list D) (model : list M) (hidden : list F).
Context (allowed : K * H -> K * H -> bool) (scale eps : R) (f slope : R -> R).

Definition of_projected :=
  let hd := columns_of_heads heads widths in lefts_rights hd (lefts_rights hd hd).

Lemma sum_projected (u : K * projected -> R) : sum (pairs tokens of_projected) u =
  Σ (i ∈ pairs tokens heads) Σ (d ∈ widths) u (fst i, inl (snd i, d)) +
  Σ (i ∈ pairs tokens heads) Σ (d ∈ widths) u (fst i, inr (inl (snd i, d))) +
  Σ (i ∈ pairs tokens heads) Σ (d ∈ widths) u (fst i, inr (inr (snd i, d))).
Proof.
  rewrite !sum_pairs, <- !sum_plus; apply sum_ext; intros t _.
  unfold of_projected, columns_of_heads; rewrite !sum_lefts_rights, !sum_pairs; cbn [fst snd]; algebra.
Qed.

(** Attention in every head, from query, key and value of each token. *)
Theorem attend_is_right : right_backward [] (pairs tokens of_projected) (pairs (pairs tokens heads) widths)
  (attend tokens heads widths allowed scale : layer reals _ _ _).
Proof.
  set (o := heads_options (A := reals) tokens heads widths allowed scale); intros w x t dw dx _ Mx.
  assert (moved : moves (fun t => as_inputs reals (x t)) t (as_inputs reals dx)).
  { intros [i d | j d | j d | b | []]; [apply Mx ..|]; exact (derive_constant 0). }
  assert (L : true_slopes o (score_mod o)) by apply no_modifier_slopes.
  assert (U : whole_bias o) by (split; [constructor; [easy | constructor] | intros; now left]).
  exists (fun a => tangent_out o (as_inputs reals (x t)) (as_inputs reals dx) (fst a) (snd a)); split.
  { intro a; exact (out_moves L moved (fst a) (snd a)). }
  intro g; pose proof (backward_is_transpose (as_inputs reals (x t)) (as_inputs reals dx)
    {| dout i d := g (i, d); dlse _ := 0 : reals |} U) as E.
  rewrite inputs_dot_parts in E; unfold outputs_dot in E; cbn [biases entries o heads_options sum dlse dout] in E.
  change (as_inputs reals dx (bias tt)) with 0 in E; in_reals; rewrite Rmult_0_r, !Rplus_0_r in E.
  rewrite sum_projected, sum_pairs; cbn [sum]; rewrite Rplus_0_l; etransitivity; [etransitivity; [|exact E]|].
  - apply sum_ext; intros i _; now rewrite Rmult_0_l, Rplus_0_r.
  - repeat apply (f_equal2 Rplus); apply sum_ext; intros [k h] _; reflexivity.
Qed.

(** The places of the weights of multi-head self-attention: those of its four projections. *)
Definition affine_places {X Y} (xs : list X) (ys : list Y) : list (affine_place X Y) :=
  map (fun p => matrix (fst p) (snd p)) (pairs xs ys) ++ map (fun b => offset b) ys.
Definition no_places : list Empty_set := [].
Definition attention_places :=
  let columns := columns_of_heads heads widths in let project := affine_places model columns in
  lefts_rights (lefts_rights (lefts_rights (lefts_rights project (lefts_rights project project)) no_places) no_places)
    (affine_places columns model).

(** Multi-head self-attention, with its four projections and their biases. *)
Theorem self_attention_is_right : right_backward attention_places (pairs tokens model) (pairs tokens model)
  (self_attention tokens heads widths model allowed scale : layer reals _ _ _).
Proof.
  eapply after_is_right; [eapply after_is_right; [eapply after_is_right|]|].
  - eapply tokenwise_is_right, fork_is_right; [apply affine_is_right | eapply fork_is_right; apply affine_is_right].
  - apply attend_is_right.
  - apply (rearrange_is_right (ys := pairs tokens (columns_of_heads heads widths))); [now intros [k [h d]]|].
    intro F0; unfold columns_of_heads; rewrite !sum_pairs; apply sum_ext; intros k _; apply sum_pairs.
  - apply tokenwise_is_right, affine_is_right.
Qed.

(** From here on [slope] is the derivative of the activation [f] everywhere, and the model width and eps are above 0. *)
Context (true_slope : forall z, is_derive f z (slope z)) (some_width : model <> []) (eps_positive : 0 < eps).

(** The places of the weights of the feed-forward network. *)
Definition feed_forward_places :=
  lefts_rights (lefts_rights (affine_places model hidden) no_places) (affine_places hidden model).

(** The feed-forward network. *)
Theorem feed_forward_is_right : right_backward feed_forward_places (pairs tokens model) (pairs tokens model)
  (feed_forward tokens model hidden f slope : layer reals _ _ _).
Proof.
  apply tokenwise_is_right; eapply after_is_right; [eapply after_is_right|].
  - apply affine_is_right.
  - apply activation_is_right; intro; apply true_slope.
  - apply affine_is_right.
Qed.

Definition norm_places := map (fun a => gamma a) model ++ map (fun a => beta a) model.

Lemma norm_is_right : right_backward norm_places (pairs tokens model) (pairs tokens model)
  (norm tokens model eps : layer reals _ _ _).
Proof. now apply tokenwise_is_right, layer_norm_is_right. Qed.

(** The encoder block with its norms first: its backward is the gradient, for all of its weights and for its input. *)
Theorem encoder_block_pre_is_right : right_backward
  (lefts_rights (lefts_rights norm_places attention_places) (lefts_rights norm_places feed_forward_places))
  (pairs tokens model) (pairs tokens model)
  (encoder_block_pre tokens heads widths model hidden allowed scale eps f slope : layer reals _ _ _).
Proof.
  eapply after_is_right; apply residual_is_right; eapply after_is_right.
  - apply norm_is_right.
  - apply self_attention_is_right.
  - apply norm_is_right.
  - apply feed_forward_is_right.
Qed.

(** The encoder block with its norms last: the same. *)
Theorem encoder_block_post_is_right : right_backward
  (lefts_rights (lefts_rights attention_places norm_places) (lefts_rights feed_forward_places norm_places))
  (pairs tokens model) (pairs tokens model)
  (encoder_block_post tokens heads widths model hidden allowed scale eps f slope : layer reals _ _ _).
Proof.
  eapply after_is_right; (eapply after_is_right; [apply residual_is_right | apply norm_is_right]).
  - apply self_attention_is_right.
  - apply feed_forward_is_right.
Qed.
End BlockIsRight.
